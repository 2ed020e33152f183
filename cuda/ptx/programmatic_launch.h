// Programmatic dependent launch (PTX 9.7.13.13): a kernel may start while the one before it in the stream still runs.
// Both instructions do nothing where the launch asked for no such overlap.
#pragma once

#include "ptx/thread.h"

namespace jaxbw::ptx {

// Waits until the kernels before this one are complete and their writes visible. For every thread that reads what they
// write, or writes what they read.
JAXBW_DEVICE void wait_for_upstream() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// Lets the next kernel start, as far as this CTA is concerned. It does not order memory: the other one waits.
JAXBW_DEVICE void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

}  // namespace jaxbw::ptx
