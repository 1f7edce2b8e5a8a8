list(APPEND KERNEL_SOURCES head_matmul/head_matmul.cc)
list(APPEND KERNEL_TESTS head_matmul/head_matmul_test.cc)
