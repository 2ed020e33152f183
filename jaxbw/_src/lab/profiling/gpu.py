"""A profile on this machine's GPU, by the profiling build of the kernel."""

from statistics import median

import jax
import jax.numpy as jnp
import numpy as np

from jaxbw._src.lab.profiling import build, stamped
from jaxbw._src.lab.profiling.profile import Profile
from jaxbw._src.lab.profiling.record import Layout, read
from jaxbw._src.lab.tuning.launching import Chosen, Gpu, Matmul
from jaxbw._src.selection.devices import Device

BURSTS, REPEATS = 10, 20  # of each build, in turns
WARM = 10  # launches before the one that is shown
_MICRO = 1e-3  # of a nanosecond


def profile(problem: Matmul, choice: Chosen, device: Device, gpu: Gpu) -> Profile:
    """Launches the matmul on random numbers: both builds in turns, timed; then one that is shown.

    Raises:
      ValueError: the matmul does not fit what is set aside.
      RuntimeError: there is no profiling build.
    """
    assert choice.kernel is not None
    layout = Layout.of(problem, choice, device.sm_count)
    directory = build.compiled(choice.kernel)
    memory = jax.block_until_ready(jnp.zeros(2 * layout.words, jnp.uint32))
    place = (memory.unsafe_buffer_pointer(), layout.words, layout.slice_words)
    normal = gpu.launch(problem, choice)
    stamping = gpu.launch(problem, choice, profiling=(str(directory), *place))
    times = gpu.time([[normal], [stamping]] * BURSTS, REPEATS)
    for number in range(WARM + 1):
        stamping(number, number, wait=number == WARM)
    recorded = read(np.asarray(memory).view(np.uint64), layout)
    return Profile(
        choice=choice,
        machine=device.name,
        unit="us",
        moments=stamped.moments(recorded, _MICRO),
        shares=stamped.shares(recorded),
        lost=stamped.lost(recorded),
        normal_us=median(time for burst in times[::2] for time in burst),
        profiled_us=median(time for burst in times[1::2] for time in burst),
        kernels=gpu.kernels(normal, REPEATS),
        ghz=recorded.ghz,
        tick_ns=recorded.tick_ns,
        groups=stamped.groups(recorded, _MICRO),
    )
