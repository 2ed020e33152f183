# The extension module `_native`: the host runtime, the XLA FFI handlers and the emulator.

# The directory of an installed Python package, without importing it.
function(jaxbw_find_package_dir package result)
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c
            "import importlib.util as u; s = u.find_spec('${package}'); print(s.submodule_search_locations[0] if s else '')"
    OUTPUT_VARIABLE directory OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  if(NOT directory)
    message(FATAL_ERROR "jaxbw needs the Python package ${package} to build: ${Python_EXECUTABLE} does not have it. "
                        "`pip install .` brings it; with --no-build-isolation install it first.")
  endif()
  set(${result} "${directory}" PARENT_SCOPE)
endfunction()

jaxbw_find_package_dir(nanobind nanobind_dir)
find_package(nanobind CONFIG REQUIRED PATHS "${nanobind_dir}/cmake" NO_DEFAULT_PATH)
jaxbw_find_package_dir(jaxlib jaxlib_dir)

# cuda.h (types and enums only: the driver is opened at run time) comes with the compiler of the kernels.
include(cmake/cuda_toolchain.cmake)

# Before the compile options below, which are for our own sources.
if(TARGET Python::SABIModule)
  nanobind_build_library(nanobind-static-abi3)
else()
  nanobind_build_library(nanobind-static)
endif()

# Off: fields left out of a designated initializer are meant to be zero; g++ 12 sees overlaps in std::string's operator+.
add_compile_options(-Wall -Wextra -Wno-missing-field-initializers -Wno-restrict $<$<BOOL:${JAXBW_WERROR}>:-Werror>)
if(JAXBW_SANITIZE)
  add_compile_options(-fsanitize=${JAXBW_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${JAXBW_SANITIZE})
endif()

add_subdirectory(cuda/emulator)
add_subdirectory(cuda/host)

file(GLOB bindings CONFIGURE_DEPENDS cuda/host/*bindings.cc)
nanobind_add_module(_native STABLE_ABI NB_STATIC NOMINSIZE cuda/host/module.cc ${bindings})
target_link_libraries(_native PRIVATE jaxbw_host jaxbw_emulator ${CMAKE_DL_LIBS})
target_precompile_headers(_native PRIVATE ${JAXBW_PRECOMPILED} <nanobind/nanobind.h>)
# Where the compiler brings only a static libstdc++, the module carries a copy of it beside the process's shared one.
# Exported, the two would mix: the copy would look up locale facets by the other's indices, and crash in operator<<.
target_link_options(_native PRIVATE LINKER:--exclude-libs,ALL)

if(SKBUILD_STATE STREQUAL "editable")
  set_target_properties(_native PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${JAXBW_PACKAGE_DIR}")
else()
  install(TARGETS _native LIBRARY DESTINATION jaxbw)
endif()
