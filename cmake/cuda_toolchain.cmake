# JAXBW_NVCC, JAXBW_PTXAS and JAXBW_CUDA_INCLUDE_DIR (where cuda.h is), as cuda/kernels/toolchain.py finds them.
# CMake's own CUDA support does not know the layout of NVIDIA's wheels.
execute_process(
  COMMAND "${Python_EXECUTABLE}" cuda/kernels/toolchain.py
  WORKING_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}"
  OUTPUT_VARIABLE toolchain OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_VARIABLE complaint RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "${complaint}")
endif()
list(GET toolchain 0 JAXBW_NVCC)
list(GET toolchain 1 JAXBW_PTXAS)
list(GET toolchain 2 JAXBW_CUDA_INCLUDE_DIR)
message(STATUS "jaxbw: kernels by ${JAXBW_NVCC}")
