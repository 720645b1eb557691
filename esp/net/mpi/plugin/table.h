/* Interface of an MPI plug-in: a table of C functions. One plug-in is built per installed MPI. A process started by
 * that MPI's mpirun loads it at run time. Functions return 0 or an error code of the MPI, which `describe` converts to
 * text. All functions are thread-safe; if the MPI does not support threads, the plug-in holds a lock. */
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ESP_MPI_TABLE_VERSION 1
#define ESP_MPI_TABLE_SYMBOL "espalier_mpi_table"

typedef void* EspMpiRequest; /* a transfer in progress; null: none */

typedef struct EspMpiTable {
  int version;
  const char* library; /* for messages */
  int (*init)(void);   /* no effect if MPI is already initialised; finalize then does not finalize it */
  int (*finalize)(void);
  int (*rank)(void);
  int (*size)(void);
  int (*local_size)(void); /* ranks on this host */
  int (*tag_limit)(void);  /* the largest tag */
  int (*broadcast)(void* data, int bytes, int root);
  int (*isend)(const void* data, int bytes, int peer, int tag, EspMpiRequest* request);
  int (*irecv)(void* data, int bytes, int peer, int tag, EspMpiRequest* request);
  /* When done, the request is freed and set to null; `bytes` is the size of a received message. */
  int (*test)(EspMpiRequest* request, int* done, int* bytes);
  /* Requests cancellation of a transfer; `test` must still be called until it is done. */
  int (*cancel)(EspMpiRequest request);
  void (*describe)(int code, char* text, int bytes);
} EspMpiTable;

#ifdef __cplusplus
}
#endif
