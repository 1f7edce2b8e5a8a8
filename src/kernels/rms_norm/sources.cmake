list(APPEND KERNEL_SOURCES rms_norm/rms_norm.cc rms_norm/rms_norm_ref.cc)
list(APPEND KERNEL_AVX2 rms_norm/rms_norm_avx2.cc)
list(APPEND KERNEL_TESTS rms_norm/rms_norm_test.cc)
list(APPEND KERNEL_BENCHES rms_norm/rms_norm_bench.cc)
