/* Espalier collectives: the C interface.
 *
 * A communicator connects `size` ranks, numbered from 0. Every rank makes the same calls in the same order. Ranks are
 * processes or threads; one thread may also drive several ranks (between esp_group_begin and esp_group_end).
 *
 * Counts are in elements. In place means in == out; for all_gather and reduce_scatter it means the rank's part of the
 * larger buffer. Every collective has a parameter esp_work**. NULL: the call blocks until it is done. Otherwise it
 * returns at once, the buffers must not change until the work is done, and the caller frees the work. Every wait has a
 * deadline (option timeout_s).
 *
 * Every function that can fail returns ESP_OK or an error code; esp_last_error returns the message of the thread's last
 * failure. After ESP_ERROR_COMM a communicator is unusable: every call returns the same error until it is finalized.
 *
 * One thread at a time may use a communicator; different communicators are independent. The interface is stable: names,
 * meanings and values do not change; new ones may be added. */
#ifndef ESPALIER_COLLECTIVES_H
#define ESPALIER_COLLECTIVES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define ESP_API __attribute__((visibility("default")))
#else
#define ESP_API
#endif

#define ESP_API_VERSION 1
/* The ESP_API_VERSION with which the library was built, and its release as text. */
ESP_API int esp_api_version(void);
ESP_API const char* esp_version(void);

typedef enum esp_result {
  ESP_OK = 0,
  ESP_ERROR_INTERNAL = 1, /* a bug in Espalier */
  ESP_ERROR_USAGE = 2,    /* an invalid argument; no data was sent */
  ESP_ERROR_COMM = 3,     /* a peer was lost, timed out, or made a different call */
  ESP_ERROR_FILES = 4,    /* a file could not be read, for example the secret */
  ESP_NOT_DONE = 5        /* esp_work_wait timed out; the call continues */
} esp_result;

/* Data types and reductions are plain ints: an unknown value is then an error, not undefined behaviour. */
typedef int esp_dtype;
enum {
  ESP_F64 = 0,
  ESP_F32 = 1,
  ESP_BF16 = 2,
  ESP_F16 = 3,
  ESP_I64 = 4,
  ESP_I32 = 5,
  ESP_I16 = 6,
  ESP_I8 = 7,
  ESP_U8 = 8
};

typedef int esp_op;
enum { ESP_SUM = 0, ESP_PROD = 1, ESP_MIN = 2, ESP_MAX = 3, ESP_AVG = 4 };

typedef struct esp_comm esp_comm;
typedef struct esp_work esp_work;

/* The message of this thread's last failed call; empty if none failed. Valid until its next failed call. */
ESP_API const char* esp_last_error(void);
/* The rank that caused the last failure, or -1. */
ESP_API int esp_last_error_rank(void);

/* -- creating and destroying communicators ----------------------------------------------------------------------------
 * `options` is NULL or "key=value;key=value". Keys, with defaults: timeout_s (60; timeout of one call), start_timeout_s
 * (600; timeout of every wait while ranks start and connect), link_timeout_s (30; a host that does not answer for this
 * time is lost), transport (auto). Further keys: algorithms (for example all_reduce=ring), slice_bytes, shape (for
 * example 4x2), interface, streams_per_peer. The environment variables ESPALIER_START_TIMEOUT_S and
 * ESPALIER_LINK_TIMEOUT_S set other defaults for start_timeout_s and link_timeout_s. */

/* Joins the job described by environment variables: RANK WORLD_SIZE MASTER_ADDR MASTER_PORT as set by torchrun, those
 * of Slurm, or those of an MPI with MASTER_ADDR. The port may be in use by another program. Several hosts need
 * ESPALIER_SECRET_FILE. Without any of these variables: a world of one rank. */
ESP_API esp_result esp_init(const char* options, esp_comm** comm);
/* Joins the job described by these arguments. Rank 0 listens at address and port. secret_file: a 0600 file with the
 * job's secret; NULL: the user's default secret, valid on one host only. */
ESP_API esp_result esp_init_rank(int rank, int size, const char* address, int port, const char* secret_file,
                                 const char* options, esp_comm** comm);
/* Creates a world whose ranks are all in this process: fills comms[0] to comms[num_ranks - 1]. */
ESP_API esp_result esp_init_local(int num_ranks, const char* options, esp_comm** comms);
/* Collective. Ranks with equal colour form a communicator, ordered by key, then rank; colour < 0 returns NULL. */
ESP_API esp_result esp_split(esp_comm* comm, int colour, int key, esp_comm** child);
/* Ends all calls in flight on every rank with ESP_ERROR_COMM. May be called from any thread. */
ESP_API esp_result esp_abort(esp_comm* comm, const char* why);
/* Frees the communicator, its memory and its threads. NULL is allowed. */
ESP_API esp_result esp_finalize(esp_comm* comm);

ESP_API int esp_rank(const esp_comm* comm);
ESP_API int esp_size(const esp_comm* comm);

/* Collective. Allocates memory that all ranks of one host map, so that collectives on it need no staging copy. Freed by
 * esp_free or with the communicator. */
ESP_API esp_result esp_allocate(esp_comm* comm, size_t bytes, void** memory);
ESP_API esp_result esp_free(esp_comm* comm, void* memory);

/* -- collectives ------------------------------------------------------------------------------------------------------
 */

ESP_API esp_result esp_broadcast(esp_comm* comm, void* data, size_t count, esp_dtype dtype, int root, esp_work** work);
/* out is written on the root only and may be NULL on the other ranks. */
ESP_API esp_result esp_reduce(esp_comm* comm, const void* in, void* out, size_t count, esp_dtype dtype, esp_op op,
                              int root, esp_work** work);
ESP_API esp_result esp_all_reduce(esp_comm* comm, const void* in, void* out, size_t count, esp_dtype dtype, esp_op op,
                                  esp_work** work);
/* in: recv_count elements for every rank; out: recv_count elements of this rank. */
ESP_API esp_result esp_reduce_scatter(esp_comm* comm, const void* in, void* out, size_t recv_count, esp_dtype dtype,
                                      esp_op op, esp_work** work);
ESP_API esp_result esp_all_gather(esp_comm* comm, const void* in, void* out, size_t send_count, esp_dtype dtype,
                                  esp_work** work);
ESP_API esp_result esp_gather(esp_comm* comm, const void* in, void* out, size_t send_count, esp_dtype dtype, int root,
                              esp_work** work);
ESP_API esp_result esp_scatter(esp_comm* comm, const void* in, void* out, size_t recv_count, esp_dtype dtype, int root,
                               esp_work** work);
ESP_API esp_result esp_all_to_all(esp_comm* comm, const void* in, void* out, size_t count_per_rank, esp_dtype dtype,
                                  esp_work** work);
/* One count and one offset per rank, in elements. Inside a group the arrays must stay valid until esp_group_end. */
ESP_API esp_result esp_all_to_all_v(esp_comm* comm, const void* in, const size_t* send_counts,
                                    const size_t* send_offsets, void* out, const size_t* recv_counts,
                                    const size_t* recv_offsets, esp_dtype dtype, esp_work** work);
ESP_API esp_result esp_send(esp_comm* comm, const void* data, size_t count, esp_dtype dtype, int peer, esp_work** work);
ESP_API esp_result esp_recv(esp_comm* comm, void* data, size_t count, esp_dtype dtype, int peer, esp_work** work);
ESP_API esp_result esp_barrier(esp_comm* comm, esp_work** work);
/* esp_signal increments a counter of the peer without waiting. esp_wait waits until the counter is positive and
 * decrements it. */
ESP_API esp_result esp_signal(esp_comm* comm, int peer);
ESP_API esp_result esp_wait(esp_comm* comm, int peer, esp_work** work);

/* -- work in flight ---------------------------------------------------------------------------------------------------
 */

/* Waits at most timeout_s seconds (negative: until the deadline of the call) and returns the result of the call. */
ESP_API esp_result esp_work_wait(esp_work* work, double timeout_s);
/* Sets *done to 1 if the call has ended. The return value is not the result of the call; esp_work_wait returns it. */
ESP_API esp_result esp_work_test(esp_work* work, int* done);
/* Frees the work; the call continues. NULL is allowed. */
ESP_API esp_result esp_work_free(esp_work* work);

/* -- groups -----------------------------------------------------------------------------------------------------------
 * Calls of this thread between begin and end are started together: sends and receives cannot block each other, and one
 * thread can drive several local ranks. A group may also contain esp_init, esp_split, esp_finalize and esp_allocate;
 * their results are available after esp_group_end. esp_group_end waits for the blocking calls. */
ESP_API esp_result esp_group_begin(void);
ESP_API esp_result esp_group_end(void);

#ifdef __cplusplus
}
#endif

#endif
