list(APPEND KERNEL_TESTS common/exp_avx2_test.cc)
