list(APPEND KERNEL_SOURCES rope_append/rope_append.cc rope_append/rope_append_ref.cc rope_append/rope_table.cc)
list(APPEND KERNEL_AVX2 rope_append/rope_append_avx2.cc)
list(APPEND KERNEL_TESTS rope_append/rope_append_test.cc)
list(APPEND KERNEL_BENCHES rope_append/rope_append_bench.cc)
