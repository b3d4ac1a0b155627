/* A stand-in for NCCL, libnccl.so.2, on machines without a GPU.
 *
 * It checks the order and the arguments of the calls that crates/burn-mpi-nccl makes: types, counts,
 * addresses and streams, and that all ranks call the same operation with the same count. It does not show
 * that these calls work with NCCL. Ranks exchange their buffers through a file that they share, on the
 * stream's thread. A wrong call prints a line and aborts the process.
 *
 * STANDIN_NCCL: the version that ncclGetVersion returns (default: 22105). STANDIN_FAIL: the number, from 1,
 * of the collective that fails on this rank and never completes (default: no collective fails).
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "standin.h"

enum { SUCCESS = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE_ERROR = 6 };
enum { UINT8 = 1, HALF = 6, FLOAT = 7, DOUBLE = 8, BFLOAT16 = 9 };
enum { MOST_RANKS = 8, PIECE = 1 << 18, MESSAGE_PIECE = 1 << 14, MOST_CALLS = 2 * MOST_RANKS };

struct id {
  char name[128];
};

/* The operation that a rank is about to run. It must be the same on all ranks. */
struct header {
  const char *name; /* for messages; `kind` is compared instead */
  int kind, type, root;
  size_t count;
};

/* A message from one rank to another, sent in pieces. There is one message at a time. */
struct mail {
  atomic_long written, taken;
  size_t total;
  char piece[MESSAGE_PIECE];
};

struct shared {
  atomic_int joined, left;
  atomic_int device[MOST_RANKS];
  atomic_long arrived[MOST_RANKS];
  struct header headers[MOST_RANKS];
  struct mail mails[MOST_RANKS][MOST_RANKS];
  char areas[MOST_RANKS][PIECE];
};

struct comm {
  struct shared *shared;
  int size, rank, device;
  long barriers;
  atomic_int aborted;
  atomic_long submitted, finished;
};

enum { ALL_REDUCE, REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST };

struct collective {
  struct comm *comm;
  struct header header;
  const char *from;
  char *to;
};

struct message {
  int sends, peer;
  char *buffer;
  size_t bytes, done;
};

struct group {
  struct comm *comm;
  void *stream;
  int calls;
  struct message messages[MOST_CALLS];
};

static __thread int group_depth;
static __thread struct group *group;

static size_t width_of(int type, const char *who) {
  switch (type) {
    case UINT8: return 1;
    case HALF: case BFLOAT16: return 2;
    case FLOAT: return 4;
    case DOUBLE: return 8;
    default: standin_fail(who, "type %d is none that is used", type);
  }
}

static int is_aborted(struct comm *comm) { return atomic_load(&comm->aborted); }

static int has_failed(long number) {
  const char *text = getenv("STANDIN_FAIL");
  return text && *text && number >= atol(text);
}

static void pause_for(unsigned *turn) {
  if (++*turn % 64 == 0) usleep(50);
  else sched_yield();
}

/* Waits for all ranks. Returns 0 if the communicator was aborted. */
static int barrier(struct comm *comm) {
  long number = ++comm->barriers;
  unsigned turn = 0;
  atomic_store(&comm->shared->arrived[comm->rank], number);
  for (int rank = 0; rank < comm->size; rank++)
    while (atomic_load(&comm->shared->arrived[rank]) < number) {
      if (is_aborted(comm)) return 0;
      pause_for(&turn);
    }
  return 1;
}

/* ---- communicators ---- */

int ncclGetVersion(int *version) {
  const char *text = getenv("STANDIN_NCCL");
  *version = text && *text ? atoi(text) : 22105;
  return SUCCESS;
}

const char *ncclGetErrorString(int code) {
  switch (code) {
    case SYSTEM_ERROR: return "unhandled system error";
    case INVALID_ARGUMENT: return "invalid argument";
    case INVALID_USAGE: return "invalid usage";
    case REMOTE_ERROR: return "remote process exited or there was a network error";
    default: return "unknown result code";
  }
}

int ncclGetUniqueId(struct id *id) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  const char *folder = getenv("TMPDIR");
  memset(id, 0, sizeof *id);
  snprintf(id->name, sizeof id->name, "%s/standin-nccl-%d-%ld", folder ? folder : "/tmp", (int)getpid(), now.tv_nsec);
  int file = open(id->name, O_RDWR | O_CREAT | O_EXCL, 0600);
  if (file < 0 || ftruncate(file, sizeof(struct shared))) return SYSTEM_ERROR;
  close(file);
  return SUCCESS;
}

int ncclCommInitRank(struct comm **handle, int size, struct id id, int rank) {
  int device = standin_device("ncclCommInitRank");
  if (size < 1 || size > MOST_RANKS || rank < 0 || rank >= size) return INVALID_ARGUMENT;
  int file = open(id.name, O_RDWR);
  if (file < 0) return SYSTEM_ERROR;
  struct comm *comm = calloc(1, sizeof *comm);
  comm->shared = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (comm->shared == MAP_FAILED) return SYSTEM_ERROR;
  comm->size = size;
  comm->rank = rank;
  comm->device = device;
  atomic_store(&comm->shared->device[rank], device);
  barrier(comm);
  if (rank == 0) unlink(id.name);
  for (int other = 0; other < size; other++)
    if (other != rank && atomic_load(&comm->shared->device[other]) == device) return INVALID_USAGE;
  *handle = comm;
  return SUCCESS;
}

int ncclCommGetAsyncError(struct comm *comm, int *code) {
  if (!comm) standin_fail("ncclCommGetAsyncError", "no communicator");
  *code = has_failed(atomic_load(&comm->submitted)) ? REMOTE_ERROR : SUCCESS;
  return SUCCESS;
}

int ncclCommAbort(struct comm *comm) {
  if (!comm) standin_fail("ncclCommAbort", "no communicator");
  if (atomic_exchange(&comm->aborted, 1)) standin_fail("ncclCommAbort", "ended before");
  fprintf(stderr, "stand-in: ncclCommAbort on rank %d\n", comm->rank);
  return SUCCESS;
}

int ncclCommDestroy(struct comm *comm) {
  if (!comm) standin_fail("ncclCommDestroy", "no communicator");
  if (atomic_exchange(&comm->aborted, 1)) standin_fail("ncclCommDestroy", "ended before");
  if (atomic_load(&comm->submitted) != atomic_load(&comm->finished))
    standin_fail("ncclCommDestroy", "operations are in flight");
  return SUCCESS;
}

/* ---- sums ---- */

static float from_bfloat16(uint16_t bits) {
  uint32_t wide = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &wide, sizeof value);
  return value;
}

static uint16_t to_bfloat16(float value) {
  uint32_t wide;
  memcpy(&wide, &value, sizeof wide);
  return (uint16_t)((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
}

static void add(void *sum, const void *term, size_t bytes, int type) {
  switch (type) {
    case UINT8:
      for (size_t i = 0; i < bytes; i++) ((uint8_t *)sum)[i] += ((const uint8_t *)term)[i];
      break;
    case HALF:
      for (size_t i = 0; i < bytes / 2; i++) ((_Float16 *)sum)[i] += ((const _Float16 *)term)[i];
      break;
    case BFLOAT16:
      for (size_t i = 0; i < bytes / 2; i++) {
        uint16_t *at = (uint16_t *)sum + i;
        *at = to_bfloat16(from_bfloat16(*at) + from_bfloat16(((const uint16_t *)term)[i]));
      }
      break;
    case FLOAT:
      for (size_t i = 0; i < bytes / 4; i++) ((float *)sum)[i] += ((const float *)term)[i];
      break;
    default:
      for (size_t i = 0; i < bytes / 8; i++) ((double *)sum)[i] += ((const double *)term)[i];
  }
}

/* Sums one piece over all ranks, from the last rank down. NCCL promises no order for native sums, so the
 * order must not be rank order by chance. */
static void sum_piece(struct comm *comm, char *to, size_t offset, size_t bytes, int type) {
  memcpy(to, comm->shared->areas[comm->size - 1] + offset, bytes);
  for (int rank = comm->size - 2; rank >= 0; rank--) add(to, comm->shared->areas[rank] + offset, bytes, type);
}

/* ---- collectives ---- */

static void check_headers(struct comm *comm, const struct header *mine) {
  for (int rank = 0; rank < comm->size; rank++) {
    const struct header *other = &comm->shared->headers[rank];
    if (other->kind != mine->kind || other->type != mine->type || other->root != mine->root || other->count != mine->count)
      standin_fail(mine->name, "rank %d: kind %d, type %d, root %d, count %zu; rank %d: kind %d, type %d, root %d, count %zu",
                   comm->rank, mine->kind, mine->type, mine->root, mine->count, rank, other->kind, other->type,
                   other->root, other->count);
  }
}

static void take_piece(const struct collective *call, size_t at, size_t bytes, size_t count_bytes) {
  struct comm *comm = call->comm;
  switch (call->header.kind) {
    case ALL_REDUCE: sum_piece(comm, call->to + at, 0, bytes, call->header.type); break;
    case REDUCE:
      if (comm->rank == call->header.root) sum_piece(comm, call->to + at, 0, bytes, call->header.type);
      break;
    case REDUCE_SCATTER: {
      size_t first = (size_t)comm->rank * count_bytes, last = first + count_bytes;
      size_t from = at > first ? at : first, to = at + bytes < last ? at + bytes : last;
      if (from < to) sum_piece(comm, call->to + (from - first), from - at, to - from, call->header.type);
      break;
    }
    case ALL_GATHER:
      for (int rank = 0; rank < comm->size; rank++)
        memcpy(call->to + (size_t)rank * count_bytes + at, comm->shared->areas[rank], bytes);
      break;
    default: memcpy(call->to + at, comm->shared->areas[call->header.root], bytes);
  }
}

static void run_collective(void *argument) {
  struct collective *call = argument;
  struct comm *comm = call->comm;
  size_t count_bytes = call->header.count * width_of(call->header.type, call->header.name);
  size_t brings = call->header.kind == REDUCE_SCATTER ? count_bytes * (size_t)comm->size : count_bytes;
  comm->shared->headers[comm->rank] = call->header;
  while (has_failed(atomic_load(&comm->finished) + 1) && !is_aborted(comm)) usleep(1000);
  int goes_on = barrier(comm);
  if (goes_on) check_headers(comm, &call->header);
  for (size_t at = 0; goes_on && at < brings; at += PIECE) {
    size_t bytes = brings - at < PIECE ? brings - at : PIECE;
    memcpy(comm->shared->areas[comm->rank], call->from + at, bytes);
    goes_on = barrier(comm);
    if (goes_on) take_piece(call, at, bytes, count_bytes);
    goes_on = goes_on && barrier(comm);
  }
  atomic_fetch_add(&comm->finished, 1);
  free(call);
}

static int collective(const char *name, int kind, const void *from, void *to, size_t count, int type, int root, int sum,
                      struct comm *comm, void *stream) {
  size_t width = width_of(type, name);
  if (!comm || is_aborted(comm)) standin_fail(name, "no communicator, or one that has ended");
  if (group_depth) standin_fail(name, "inside a group");
  if (standin_device(name) != comm->device) standin_fail(name, "the context is of another GPU than the communicator");
  if (count == 0 || sum != 0 || root < 0 || root >= comm->size) standin_fail(name, "count, operation or root");
  size_t parts = (size_t)comm->size;
  standin_check_device(from, count * width * (kind == REDUCE_SCATTER ? parts : 1), name);
  standin_check_device(to, count * width * (kind == ALL_GATHER ? parts : 1), name);
  struct collective *call = calloc(1, sizeof *call);
  *call = (struct collective){comm, {name, kind, type, root, count}, from, to};
  atomic_fetch_add(&comm->submitted, 1);
  standin_enqueue(stream, run_collective, call, name);
  return SUCCESS;
}

int ncclAllReduce(const void *from, void *to, size_t count, int type, int sum, struct comm *comm, void *stream) {
  return collective("ncclAllReduce", ALL_REDUCE, from, to, count, type, 0, sum, comm, stream);
}

int ncclReduce(const void *from, void *to, size_t count, int type, int sum, int root, struct comm *comm, void *stream) {
  return collective("ncclReduce", REDUCE, from, to, count, type, root, sum, comm, stream);
}

int ncclReduceScatter(const void *from, void *to, size_t count, int type, int sum, struct comm *comm, void *stream) {
  return collective("ncclReduceScatter", REDUCE_SCATTER, from, to, count, type, 0, sum, comm, stream);
}

int ncclAllGather(const void *from, void *to, size_t count, int type, struct comm *comm, void *stream) {
  return collective("ncclAllGather", ALL_GATHER, from, to, count, type, 0, 0, comm, stream);
}

int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, struct comm *comm, void *stream) {
  return collective("ncclBroadcast", BROADCAST, from, to, count, type, root, 0, comm, stream);
}

/* ---- messages ---- */

/* Moves one piece, if there is a piece to move, and room for it. */
static int move_piece(struct comm *comm, struct message *message) {
  int from = message->sends ? comm->rank : message->peer, to = message->sends ? message->peer : comm->rank;
  struct mail *mail = &comm->shared->mails[from][to];
  size_t left = message->bytes - message->done, bytes = left < MESSAGE_PIECE ? left : MESSAGE_PIECE;
  if ((atomic_load(&mail->written) == atomic_load(&mail->taken)) != message->sends) return 0;
  if (message->sends) {
    mail->total = message->bytes;
    memcpy(mail->piece, message->buffer + message->done, bytes);
    atomic_fetch_add(&mail->written, 1);
  } else {
    if (mail->total != message->bytes)
      standin_fail("ncclRecv", "rank %d sends %zu bytes, and rank %d receives %zu", from, mail->total, to, message->bytes);
    memcpy(message->buffer + message->done, mail->piece, bytes);
    atomic_fetch_add(&mail->taken, 1);
  }
  message->done += bytes;
  return 1;
}

static void run_group(void *argument) {
  struct group *calls = argument;
  int left = calls->calls;
  unsigned turn = 0;
  while (left > 0 && !is_aborted(calls->comm)) {
    int moved = 0;
    left = 0;
    for (int i = 0; i < calls->calls; i++) {
      struct message *message = &calls->messages[i];
      if (message->done < message->bytes) moved |= move_piece(calls->comm, message);
      left += message->done < message->bytes;
    }
    if (!moved && left) pause_for(&turn);
  }
  atomic_fetch_add(&calls->comm->finished, 1);
  free(calls);
}

int ncclGroupStart(void) {
  if (group_depth++) standin_fail("ncclGroupStart", "a group inside a group");
  group = calloc(1, sizeof *group);
  return SUCCESS;
}

int ncclGroupEnd(void) {
  if (group_depth-- != 1) standin_fail("ncclGroupEnd", "without a group");
  if (group->calls == 0) return SUCCESS;
  atomic_fetch_add(&group->comm->submitted, 1);
  standin_enqueue(group->stream, run_group, group, "ncclGroupEnd");
  return SUCCESS;
}

static int message(const char *name, int sends, void *buffer, size_t count, int type, int peer, struct comm *comm, void *stream) {
  if (!comm || is_aborted(comm)) standin_fail(name, "no communicator, or one that has ended");
  if (count == 0 || peer < 0 || peer >= comm->size) standin_fail(name, "count or peer");
  if (standin_device(name) != comm->device) standin_fail(name, "the context is of another GPU than the communicator");
  if (peer == comm->rank && !group_depth) standin_fail(name, "to itself outside a group, which waits for ever");
  size_t bytes = count * width_of(type, name);
  standin_check_device(buffer, bytes, name);
  int alone = !group_depth;
  if (alone) ncclGroupStart();
  if (group->calls == MOST_CALLS) standin_fail(name, "too many calls in a group");
  if (group->calls && (group->comm != comm || group->stream != stream)) standin_fail(name, "a group of two streams");
  group->comm = comm;
  group->stream = stream;
  group->messages[group->calls++] = (struct message){sends, peer, buffer, bytes, 0};
  return alone ? ncclGroupEnd() : SUCCESS;
}

int ncclSend(const void *buffer, size_t count, int type, int peer, struct comm *comm, void *stream) {
  return message("ncclSend", 1, (void *)buffer, count, type, peer, comm, stream);
}

int ncclRecv(void *buffer, size_t count, int type, int peer, struct comm *comm, void *stream) {
  return message("ncclRecv", 0, buffer, count, type, peer, comm, stream);
}
