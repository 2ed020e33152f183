"""What `import jaxbw` is made of. Private: any of it may change."""
