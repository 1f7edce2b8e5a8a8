list(APPEND KERNEL_SOURCES
  matmul/cuda_rows.cc
  matmul/matmul.cc
  matmul/matmul_ref.cc
  matmul/pack.cc
  matmul/panel.cc
  matmul/panel_codes.cc)
list(APPEND KERNEL_AVX2
  matmul/matmul_codes16_avx2.cc
  matmul/matmul_codes32_avx2.cc
  matmul/matmul_float_avx2.cc
  matmul/matmul_int16_avx2.cc)
list(APPEND KERNEL_AVX512
  matmul/matmul_codes_amx.cc
  matmul/matmul_codes_avx512.cc
  matmul/matmul_float_avx512.cc
  matmul/matmul_int16_avx512.cc)
list(APPEND KERNEL_TESTS
  matmul/bulk_cut_test.cc
  matmul/chain_test.cc
  matmul/code_rows_test.cc
  matmul/cuda_rows_test.cc
  matmul/gemv_shape_test.cc
  matmul/grouped_matmul_test.cc
  matmul/matmul_int16_test.cc
  matmul/matmul_speed_test.cc
  matmul/matmul_swiglu_test.cc
  matmul/matmul_test.cc
  matmul/pack_test.cc)
list(APPEND KERNEL_BENCHES
  matmul/matmul_bench.cc)
