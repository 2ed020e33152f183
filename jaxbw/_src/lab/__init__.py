"""The laboratory: what measures, tunes, profiles and models. `import jaxbw` does not enter."""
