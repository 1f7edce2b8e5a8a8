list(APPEND KERNEL_SOURCES moe_route/moe_gate.cc moe_route/moe_route.cc)
list(APPEND KERNEL_TESTS moe_route/moe_route_test.cc)
list(APPEND KERNEL_BENCHES moe_route/moe_route_bench.cc)
