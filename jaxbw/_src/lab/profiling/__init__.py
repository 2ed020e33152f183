"""What every warp of one launch did when: on the GPU by a profiling build, else in the emulator."""
