# Cross-compilation for the Arm hosts of GB200, with Debian's g++-aarch64-linux-gnu: `make cross`.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
