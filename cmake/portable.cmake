# CACHALOT_PORTABLE: programs that need nothing of the machine they run on but libc and, for its GPU, the driver and CUDA 13's
# cuBLASLt. Libraries come as archives or headers, libstdc++ is linked in.
option(CACHALOT_PORTABLE "Link all but libc into the programs" OFF)
set(CACHALOT_FMT fmt::fmt)
set(CACHALOT_SPDLOG spdlog::spdlog)
if(CACHALOT_PORTABLE)
  set(CACHALOT_FMT fmt::fmt-header-only)
  set(CACHALOT_SPDLOG spdlog::spdlog_header_only)
  set_property(TARGET spdlog::spdlog_header_only PROPERTY INTERFACE_LINK_LIBRARIES fmt::fmt-header-only Threads::Threads)
  add_link_options(-static-libstdc++ -static-libgcc)
endif()

# After pkg_check_modules: the archive in place of the shared library.
function(cachalot_prefer_archive target name)
  if(CACHALOT_PORTABLE)
    find_library(${name}_archive NAMES lib${name}.a REQUIRED)
    set_property(TARGET ${target} PROPERTY INTERFACE_LINK_LIBRARIES ${${name}_archive})
  endif()
endfunction()
