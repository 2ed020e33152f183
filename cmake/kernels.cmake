# The kernels: cuda/kernels.toml -> <unit>.cu, of some sources -> nvcc -> <source>.ptx -> ptxas, for each instance ->
# <name>.cubin, and manifest.json. The package has the PTX of sources: that of their instances differs in a number
# (kernel_table.py). Both steps are commands of their own, so that ninja runs them in parallel and again only when
# needed.
set(generate "${CMAKE_CURRENT_SOURCE_DIR}/cuda/kernels/generate.py")
set(split "${CMAKE_CURRENT_SOURCE_DIR}/cuda/kernels/split.py")
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
  OUTPUT_VARIABLE lines OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
string(REPLACE "\n" ";" lines "${lines}")
set(units "${lines}")
list(FILTER units INCLUDE REGEX "^unit ")
set(sources "${lines}")
list(FILTER sources INCLUDE REGEX "^source ")

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
foreach(unit IN LISTS units)
  string(REPLACE " " ";" names "${unit}")
  list(POP_FRONT names kind name arch)
  string(REPLACE "sm_" "compute_" virtual_arch "${arch}")
  set(unit "${work_dir}/${name}.cu")
  set(ptx "${work_dir}/${name}.ptx")
  list(TRANSFORM names REPLACE "(.+)" "${kernel_dir}/\\1.ptx" OUTPUT_VARIABLE ptx_of_sources)

  add_custom_command(
    OUTPUT "${ptx}" ${ptx_of_sources}
    COMMAND "${JAXBW_NVCC}" -ptx -arch=${virtual_arch} ${nvcc_flags} -MD -MF "${unit}.d" -o "${ptx}" "${unit}"
    COMMAND "${Python_EXECUTABLE}" "${split}" "${ptx}" --output "${kernel_dir}"
    DEPENDS "${unit}" "${split}" DEPFILE "${unit}.d" VERBATIM COMMENT "nvcc ${name}")
endforeach()

foreach(source IN LISTS sources)
  string(REPLACE " " ";" instances "${source}")
  list(POP_FRONT instances kind name arch)
  set(ptx "${kernel_dir}/${name}.ptx")
  list(TRANSFORM instances REPLACE ":.*" "" OUTPUT_VARIABLE names)
  list(TRANSFORM names REPLACE "(.+)" "${kernel_dir}/\\1.cubin" OUTPUT_VARIABLE cubins)
  list(TRANSFORM names REPLACE "(.+)" "${work_dir}/\\1.ptxas" OUTPUT_VARIABLE reports_of_source)

  add_custom_command(
    OUTPUT ${cubins} ${reports_of_source}
    COMMAND "${Python_EXECUTABLE}" "${assemble}" --ptxas "${JAXBW_PTXAS}" --arch ${arch} --cubins "${kernel_dir}"
            --reports "${work_dir}" --instances ${instances} -- "${ptx}" ${ptxas_flags}
    DEPENDS "${ptx}" "${assemble}" VERBATIM COMMENT "ptxas ${name}")
  list(APPEND reports ${reports_of_source})
  list(APPEND products "${ptx}" ${cubins})
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
