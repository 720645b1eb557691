/* What a plug-in over one MPI offers, as a table of C functions: one plug-in is built per MPI that is installed, and
 * opened at run time by the process that this MPI's mpirun started. Functions return 0 or an error code of that MPI,
 * which `describe` puts in words. Any thread may call any of them; where the MPI does not allow that, a lock in the
 * plug-in sees to it. */
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ESP_MPI_TABLE_VERSION 1
#define ESP_MPI_TABLE_SYMBOL "espalier_mpi_table"

typedef void* EspMpiRequest; /* one transfer under way; null: none */

typedef struct EspMpiTable {
  int version;
  const char* library; /* for messages */
  int (*init)(void);   /* no effect when MPI was initialised before, and finalize then leaves it alone */
  int (*finalize)(void);
  int (*rank)(void);
  int (*size)(void);
  int (*local_size)(void); /* ranks on this host */
  int (*tag_limit)(void);  /* the largest tag */
  int (*broadcast)(void* data, int bytes, int root);
  int (*isend)(const void* data, int bytes, int peer, int tag, EspMpiRequest* request);
  int (*irecv)(void* data, int bytes, int peer, int tag, EspMpiRequest* request);
  /* When done, the request is freed and null; `bytes` is what a receive got. */
  int (*test)(EspMpiRequest* request, int* done, int* bytes);
  /* Asks for a transfer to end early; `test` still has to be called until it is done. */
  int (*cancel)(EspMpiRequest request);
  void (*describe)(int code, char* text, int bytes);
} EspMpiTable;

#ifdef __cplusplus
}
#endif
