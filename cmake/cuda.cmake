# CUDA, if it is there: sets HALFBYTE_CUDA_FOUND, target halfbyte_cuda (how .cu files are compiled).
#
#   HALFBYTE_CUDA   auto (with CUDA if a toolkit of at least 12.8 is found), on (or an error), off
#
# nvcc is looked for in CMAKE_CUDA_COMPILER, $CUDACXX, .cuda/ (scripts/make_cuda_toolkit), PATH,
# $CUDA_HOME and /usr/local/cuda. The runtime is linked statically, so that one binary runs on
# machines with and without a driver.
set(HALFBYTE_CUDA auto CACHE STRING "Hopper kernels: auto, on or off")
set_property(CACHE HALFBYTE_CUDA PROPERTY STRINGS auto on off)
set(HALFBYTE_CUDA_FOUND OFF)
# What is compiled only with CUDA; without it, `drop_cuda_files(LIST)` takes it out of a list. The
# layout of packed experts, its packer on the host and the index maps of wgmma need none: they are built
# and tested everywhere.
set(HALFBYTE_CUDA_FILES "/(cuda|dequant|gpu)/|\\.cu$")
set(HALFBYTE_HOST_FILES "/moe/cuda/(layout|pack|wgmma_map)(_test)?\\.(cpp|h)$")
function(drop_cuda_files name)
  if(NOT HALFBYTE_CUDA_FOUND)
    set(host_files ${${name}})
    list(FILTER host_files INCLUDE REGEX ${HALFBYTE_HOST_FILES})
    list(FILTER ${name} EXCLUDE REGEX ${HALFBYTE_CUDA_FILES})
    set(${name} ${${name}} ${host_files} PARENT_SCOPE)
  endif()
endfunction()
string(TOLOWER "${HALFBYTE_CUDA}" wanted)
if(NOT wanted MATCHES "^(auto|on|off)$")
  message(FATAL_ERROR "HALFBYTE_CUDA=${HALFBYTE_CUDA}: expected auto, on or off")
endif()
if(wanted STREQUAL "off")
  return()
endif()

# Why there is no CUDA: an error if it was asked for, a line otherwise.
macro(no_cuda reason)
  if(wanted STREQUAL "on")
    message(FATAL_ERROR "HALFBYTE_CUDA=on: ${reason}. scripts/make_cuda_toolkit makes a toolkit.")
  endif()
  message(STATUS "Without CUDA: ${reason}")
  return()
endmacro()

if(NOT CMAKE_CUDA_COMPILER)
  if(DEFINED ENV{CUDACXX})
    set(CMAKE_CUDA_COMPILER "$ENV{CUDACXX}")
  else()
    find_program(HALFBYTE_NVCC nvcc HINTS ${CMAKE_SOURCE_DIR}/.cuda/toolkit/bin
                 PATHS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
    if(NOT HALFBYTE_NVCC)
      no_cuda("no nvcc is found")
    endif()
    set(CMAKE_CUDA_COMPILER ${HALFBYTE_NVCC})
  endif()
endif()
execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --version OUTPUT_VARIABLE version ERROR_QUIET)
if(NOT version MATCHES "release ([0-9]+\\.[0-9]+)")
  no_cuda("${CMAKE_CUDA_COMPILER} --version names no release")
elseif(CMAKE_MATCH_1 VERSION_LESS 12.8)
  no_cuda("${CMAKE_CUDA_COMPILER} is ${CMAKE_MATCH_1}, 12.8 is needed")
endif()

# NOTE: CMake 3.25 knows neither sm_90a nor how nvcc is asked for C++20.
set(CMAKE_CUDA_ARCHITECTURES OFF)
enable_language(CUDA)
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
# Kernels are the same in every build type.
foreach(config DEBUG RELEASE RELWITHDEBINFO MINSIZEREL)
  set(CMAKE_CUDA_FLAGS_${config} "")
endforeach()
set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_SOURCE_DIR}/scripts/nvcc-launcher ${CCACHE})
# NOTE: not find_package(CUDAToolkit): that of CMake 3.25 fails on toolkits without nvToolsExt.
find_path(HALFBYTE_CUDA_INCLUDE cuda_runtime_api.h
          PATHS ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES} NO_DEFAULT_PATH REQUIRED)
find_library(HALFBYTE_CUDART cudart_static
             PATHS ${CMAKE_CUDA_IMPLICIT_LINK_DIRECTORIES} ${HALFBYTE_CUDA_INCLUDE}/../lib64
                   ${HALFBYTE_CUDA_INCLUDE}/../lib NO_DEFAULT_PATH REQUIRED)

add_library(halfbyte_cuda INTERFACE)
target_compile_options(halfbyte_cuda INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:
  -O3 -lineinfo -gencode=arch=compute_90a,code=sm_90a
  -Werror=all-warnings -Xptxas=-v,-warn-spills
  -Xcompiler=-Wall,-Wextra,-Wshadow,-Werror,-ffp-contract=off>)
target_include_directories(halfbyte_cuda SYSTEM INTERFACE ${HALFBYTE_CUDA_INCLUDE})
target_link_libraries(halfbyte_cuda INTERFACE ${HALFBYTE_CUDART} Threads::Threads ${CMAKE_DL_LIBS} rt)
set(HALFBYTE_CUDA_FOUND ON)
message(STATUS "With CUDA ${CMAKE_CUDA_COMPILER_VERSION}: ${CMAKE_CUDA_COMPILER}")
