# The kernels: cuda/kernels.toml -> <source>.cu -> nvcc -> <source>.ptx -> ptxas, for each instance -> <name>.cubin, and
# manifest.json. The package has the PTX of sources: that of their instances differs in a number (kernel_table.py).
# Each step is a command of its own, so that ninja runs them in parallel and again only when needed.
set(generate "${CMAKE_CURRENT_SOURCE_DIR}/cuda/kernels/generate.py")
set(assemble "${CMAKE_CURRENT_SOURCE_DIR}/cuda/kernels/assemble.py")
set(table "${CMAKE_CURRENT_SOURCE_DIR}/cuda/kernels.toml")
set(work_dir "${CMAKE_CURRENT_BINARY_DIR}/kernels")
set(kernel_dir "${JAXBW_PACKAGE_DIR}/kernels")
file(MAKE_DIRECTORY "${work_dir}" "${kernel_dir}")

# The table says which instances there are: configure again when it, or what reads it, changes.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
             "${table}" "${generate}" "${CMAKE_CURRENT_SOURCE_DIR}/jaxbw/_src/selection/kernel_table.py")
execute_process(
  COMMAND "${Python_EXECUTABLE}" "${generate}" sources --table "${table}" --output "${work_dir}"
  OUTPUT_VARIABLE instances OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
string(REPLACE "\n" ";" instances "${instances}")

# relaxed-constexpr: storage.h is plain C++, and its constexpr functions are for kernels too.
set(nvcc_flags -std=c++20 -O3 --expt-relaxed-constexpr -Werror all-warnings -ccbin "${CMAKE_CXX_COMPILER}"
               -I "${CMAKE_CURRENT_SOURCE_DIR}/cuda")
set(ptxas_flags -O3)
if(JAXBW_LINEINFO)
  list(APPEND nvcc_flags -lineinfo)
  list(APPEND ptxas_flags -lineinfo)
endif()

set(reports "")
set(products "")
set(compiled "")
foreach(instance IN LISTS instances)
  string(REPLACE " " ";" instance "${instance}")
  list(GET instance 0 name)
  list(GET instance 1 arch)
  list(GET instance 2 source_name)
  list(REMOVE_AT instance 0 1 2)
  string(REPLACE "sm_" "compute_" virtual_arch "${arch}")
  set(source "${work_dir}/${source_name}.cu")
  set(source_ptx "${kernel_dir}/${source_name}.ptx")
  set(cubin "${kernel_dir}/${name}.cubin")
  set(report "${work_dir}/${name}.ptxas")

  if(NOT source_name IN_LIST compiled)
    add_custom_command(
      OUTPUT "${source_ptx}"
      COMMAND "${JAXBW_NVCC}" -ptx -arch=${virtual_arch} ${nvcc_flags} -MD -MF "${source}.d" -o "${source_ptx}" "${source}"
      DEPENDS "${source}" DEPFILE "${source}.d" VERBATIM COMMENT "nvcc ${source_name}")
    list(APPEND compiled "${source_name}")
    list(APPEND products "${source_ptx}")
  endif()
  add_custom_command(
    OUTPUT "${cubin}" "${report}"
    COMMAND "${Python_EXECUTABLE}" "${assemble}" --ptxas "${JAXBW_PTXAS}" --arch ${arch} --replace ${instance}
            --report "${report}" --output "${cubin}" "${source_ptx}" -- ${ptxas_flags}
    DEPENDS "${source_ptx}" "${assemble}" VERBATIM COMMENT "ptxas ${name}")
  list(APPEND reports "${report}")
  list(APPEND products "${cubin}")
endforeach()

set(manifest "${kernel_dir}/manifest.json")
add_custom_command(
  OUTPUT "${manifest}"
  COMMAND "${Python_EXECUTABLE}" "${generate}" manifest --table "${table}" --reports "${work_dir}" --output "${manifest}"
  DEPENDS ${reports} "${table}" "${generate}" VERBATIM COMMENT "kernels/manifest.json")
add_custom_target(kernels ALL DEPENDS "${manifest}" ${products})

if(NOT SKBUILD_STATE STREQUAL "editable")
  install(FILES ${products} "${manifest}" DESTINATION jaxbw/kernels)
endif()
