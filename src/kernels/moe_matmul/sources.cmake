list(APPEND KERNEL_SOURCES moe_matmul/moe_matmul.cc)
list(APPEND KERNEL_TESTS moe_matmul/moe_few_test.cc moe_matmul/moe_matmul_test.cc)
