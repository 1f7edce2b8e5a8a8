list(APPEND KERNEL_SOURCES
  matmul/matmul.cc
  matmul/matmul_ref.cc
  matmul/pack.cc
  matmul/panel.cc)
