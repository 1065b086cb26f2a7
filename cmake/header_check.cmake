# Compiles every header alone, so that each includes what it uses. *.inl.h are parts of a file, not
# headers.
file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR}
     ${CMAKE_SOURCE_DIR}/include/*.h ${CMAKE_SOURCE_DIR}/src/*.h ${CMAKE_SOURCE_DIR}/apps/*.h)
list(FILTER headers EXCLUDE REGEX "\\.inl\\.h$")
drop_cuda_files(headers)

set(alone_sources)
foreach(header IN LISTS headers)
  string(REPLACE "/" "_" name ${header})
  set(source ${CMAKE_BINARY_DIR}/header_check/${name}.cpp)
  file(CONFIGURE OUTPUT ${source} CONTENT "#include \"${CMAKE_SOURCE_DIR}/${header}\"\n")
  list(APPEND alone_sources ${source})
endforeach()

add_library(header_check OBJECT ${alone_sources})
target_include_directories(header_check PRIVATE ${CMAKE_SOURCE_DIR}/src)
target_compile_options(header_check PRIVATE -Wall -Wextra -Wno-unused)
target_link_libraries(header_check PRIVATE halfbyte CLI11::CLI11)
