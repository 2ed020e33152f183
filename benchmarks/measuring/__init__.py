"""What the scripts of benchmarks/ share. They import from here, and never from one another.

Commands stand in benchmarks/, one to a file, with what only they need. A module here imports from
those above it:

- environment: the GPU that a script measures on, and what a reader needs to repeat the run. The
  GPU is here, not with configurations: scripts that measure other things ask for it, too.
- matmuls, model_matmuls (and model_weights.json): what is measured.
- records, configurations, xla_times: times, written and read.
- measurements, samples: times beside the cost model, and trees that are grown from them.
- builds, campaign_steps, campaign_plan: builds of the kernels, and what is due on a GPU.
- ladders: what others have measured on a B200.
- sass, kernel_counts: machine code, and what is counted in it.
"""
