# collectives._torch, the c10d backend and the ops: for the one torch that is installed where it is built, since c10d
# has no stable ABI. It does not link the core; it reaches it through the table of collectives._native.
# `python -m collectives build-torch` builds the same sources for another torch, without CMake.

# The sources are part of every wheel, for build-torch; an editable install has them in the tree.
if(NOT SKBUILD_STATE STREQUAL "editable")
  install(DIRECTORY csrc/torch DESTINATION collectives/csrc FILES_MATCHING PATTERN "*.cpp" PATTERN "*.h")
  install(FILES csrc/native/table.h DESTINATION collectives/csrc/native)
endif()

if(NOT COLLECTIVES_TORCH)
  return()
endif()

# find_package(Torch) would fail on a CUDA build of torch where there is no toolkit, so Python is asked.
execute_process(
  COMMAND ${CMAKE_COMMAND} -E env TORCH_DEVICE_BACKEND_AUTOLOAD=0 ${Python_EXECUTABLE} -c "
import torch
from torch.utils import cpp_extension
print(torch.__version__, int(torch.compiled_with_cxx11_abi()), *cpp_extension.library_paths(), sep='\\n')
print(*cpp_extension.include_paths(), sep='\\n')"
  RESULT_VARIABLE failed OUTPUT_VARIABLE answer ERROR_VARIABLE why OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT failed)
  string(REPLACE "\n" ";" torch_includes "${answer}")
  list(POP_FRONT torch_includes torch_version torch_abi torch_libraries)
  if(torch_version VERSION_LESS 2.11 OR torch_version VERSION_GREATER_EQUAL 2.16)
    set(failed 1)
    set(why "torch ${torch_version} is there; collectives._torch needs 2.11 to 2.15")
  endif()
endif()
if(failed)
  string(STRIP "${why}" why)
  string(REGEX REPLACE ".*\n" "" why "${why}")
  if(COLLECTIVES_TORCH STREQUAL "AUTO")
    message(STATUS "collectives._torch is skipped (${why}). To have it, install torch first and then this package "
      "with pip install --no-build-isolation, or run `python -m collectives build-torch` afterwards")
    return()
  endif()
  message(FATAL_ERROR "collectives._torch cannot be built for ${Python_EXECUTABLE}: ${why}")
endif()
message(STATUS "collectives._torch is built for torch ${torch_version}")

file(GLOB torch_sources CONFIGURE_DEPENDS csrc/torch/*.cpp)
Python_add_library(_torch MODULE WITH_SOABI ${torch_sources})
target_include_directories(_torch SYSTEM PRIVATE ${torch_includes})  # torch's pybind11 is among them
target_compile_definitions(_torch PRIVATE _GLIBCXX_USE_CXX11_ABI=${torch_abi})
target_link_directories(_torch PRIVATE ${torch_libraries})
target_link_libraries(_torch PRIVATE collectives_options c10 torch_cpu torch_python)
# torch is always imported before this module, and may lie elsewhere than where it was built against.
set_target_properties(_torch PROPERTIES SKIP_BUILD_RPATH ON)

# What torch it is for, readable without loading it: under another torch it would load, and fail in puzzling ways.
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/_torch_built_for.py @ONLY CONTENT
  "\"\"\"The torch that collectives._torch was built for.\"\"\"\n\nTORCH = \"@torch_version@\"\n")
install(TARGETS _torch LIBRARY DESTINATION collectives)
install(FILES ${CMAKE_BINARY_DIR}/_torch_built_for.py DESTINATION collectives)
