list(APPEND KERNEL_SOURCES sample/sample.cc sample/sample_primitives_ref.cc)
list(APPEND KERNEL_AVX2 sample/sample_primitives_avx2.cc)
list(APPEND KERNEL_TESTS sample/sample_test.cc)
list(APPEND KERNEL_BENCHES sample/sample_bench.cc)
