# SPDX-License-Identifier: Apache-2.0
#
# find_package(nvsym) for CMake: the target nvsym::headers, which has no library, since extensions get nvsym's functions when they
# are loaded. nvsym.get_cmake_dir() in Python says where this file is:
#
#   execute_process(COMMAND ${Python_EXECUTABLE} -c "import nvsym; print(nvsym.get_cmake_dir())"
#                   OUTPUT_VARIABLE nvsym_DIR OUTPUT_STRIP_TRAILING_WHITESPACE)
#   find_package(nvsym REQUIRED)
#   target_link_libraries(mine PRIVATE nvsym::headers)

get_filename_component(_nvsym_package "${CMAKE_CURRENT_LIST_DIR}" DIRECTORY)
if(EXISTS "${_nvsym_package}/include/nvsym/nvsym.h")
  set(nvsym_INCLUDE_DIR "${_nvsym_package}/include") # installed
else()
  get_filename_component(_nvsym_tree "${_nvsym_package}" DIRECTORY)
  set(nvsym_INCLUDE_DIR "${_nvsym_tree}/include") # a source tree
  unset(_nvsym_tree)
endif()
unset(_nvsym_package)

if(NOT EXISTS "${nvsym_INCLUDE_DIR}/nvsym/nvsym.h")
  set(nvsym_FOUND FALSE)
  set(nvsym_NOT_FOUND_MESSAGE "nvsym's headers are not in ${nvsym_INCLUDE_DIR}")
  return()
endif()

if(NOT TARGET nvsym::headers)
  add_library(nvsym::headers INTERFACE IMPORTED)
  set_target_properties(nvsym::headers PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${nvsym_INCLUDE_DIR}")
endif()
