# SPDX-License-Identifier: Apache-2.0
#
# The version of the package beside this file, which suits whoever asks for an older one of the same major version.

file(STRINGS "${CMAKE_CURRENT_LIST_DIR}/../_version.py" _nvsym_version REGEX "^__version__")
string(REGEX MATCH "[0-9]+(\\.[0-9]+)*" PACKAGE_VERSION "${_nvsym_version}")
unset(_nvsym_version)

string(REGEX MATCH "^[0-9]+" _nvsym_major "${PACKAGE_VERSION}")
if(PACKAGE_FIND_VERSION STREQUAL "")
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
elseif(PACKAGE_VERSION VERSION_LESS PACKAGE_FIND_VERSION OR NOT PACKAGE_FIND_VERSION_MAJOR EQUAL _nvsym_major)
  set(PACKAGE_VERSION_COMPATIBLE FALSE)
else()
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
  if(PACKAGE_VERSION VERSION_EQUAL PACKAGE_FIND_VERSION)
    set(PACKAGE_VERSION_EXACT TRUE)
  endif()
endif()
unset(_nvsym_major)
