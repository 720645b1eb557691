# The control plane on a simulated clock and network: product code under seeded faults.
file(GLOB simulation_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/simulation/*.cpp)
add_executable(control_simulation ${simulation_sources})
target_link_libraries(control_simulation PRIVATE esp_launch esp_train esp_net esp_flags)
esp_fault_test(simulation_test.py ENVIRONMENT "CONTROL_SIMULATION=$<TARGET_FILE:control_simulation>" CLASSES SimulatedJobs SimulatedStores InjectedBugs)
