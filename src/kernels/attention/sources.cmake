list(APPEND KERNEL_SOURCES attention/attention.cc attention/attention_ref.cc)
list(APPEND KERNEL_AVX2 attention/attention_avx2.cc)
list(APPEND KERNEL_TESTS attention/attention_test.cc)
list(APPEND KERNEL_BENCHES attention/attention_bench.cc)
