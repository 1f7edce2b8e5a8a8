list(APPEND KERNEL_SOURCES swiglu/swiglu.cc swiglu/swiglu_ref.cc)
list(APPEND KERNEL_AVX2 swiglu/swiglu_avx2.cc)
list(APPEND KERNEL_TESTS swiglu/swiglu_test.cc)
list(APPEND KERNEL_BENCHES swiglu/swiglu_bench.cc)
