# Installs headers, libraries, a CMake package and a pkg-config file. The installed tree is relocatable: the package and
# the pkg-config file compute the prefix from their location.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# The C API as a shared library that exports only its esp_ functions.
target_compile_definitions(esp_capi PRIVATE ESP_VERSION_TEXT="${PROJECT_VERSION}")
add_library(espalier_collectives SHARED $<TARGET_OBJECTS:esp_capi>)
target_link_libraries(espalier_collectives PRIVATE esp_launch esp_comm esp_net esp_kernel esp_device esp_obs esp_base)
target_link_options(espalier_collectives PRIVATE
  -Wl,--version-script=${CMAKE_SOURCE_DIR}/cmake/collectives.map -Wl,--exclude-libs,ALL -Wl,--gc-sections)
set_target_properties(espalier_collectives PROPERTIES
  EXPORT_NAME collectives VERSION ${PROJECT_VERSION} SOVERSION 1
  LINK_DEPENDS ${CMAKE_SOURCE_DIR}/cmake/collectives.map)
target_include_directories(espalier_collectives INTERFACE
  $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
add_library(espalier::collectives ALIAS espalier_collectives)

install(TARGETS espalier_collectives EXPORT EspalierTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT collectives NAMELINK_COMPONENT collectives)
install(FILES include/espalier/collectives.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/espalier
  COMPONENT collectives)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Espalier)
configure_package_config_file(cmake/EspalierConfig.cmake.in ${CMAKE_BINARY_DIR}/package/EspalierConfig.cmake
  INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/package/EspalierConfigVersion.cmake
  COMPATIBILITY SameMajorVersion)
install(EXPORT EspalierTargets NAMESPACE espalier:: DESTINATION ${package_dir}
  COMPONENT collectives)
install(FILES ${CMAKE_BINARY_DIR}/package/EspalierConfig.cmake
  ${CMAKE_BINARY_DIR}/package/EspalierConfigVersion.cmake DESTINATION ${package_dir}
  COMPONENT collectives)

file(RELATIVE_PATH pc_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" pc_prefix "${pc_prefix}")
configure_file(cmake/espalier-collectives.pc.in ${CMAKE_BINARY_DIR}/package/espalier-collectives.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/package/espalier-collectives.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
  COMPONENT collectives)
install(DIRECTORY python/espalier DESTINATION ${CMAKE_INSTALL_DATADIR}/espalier/python
  COMPONENT collectives FILES_MATCHING PATTERN "*.py" PATTERN __pycache__ EXCLUDE)
