/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SGLang's control messages of disaggregated serving (Mooncake form), as multipart frames, both
 * ways: frames -> one typed message or the reason why they are none, and back, byte for byte.
 *
 * Layer: nothing of ours but status.h. No I/O, no allocation, no state, no clock. Total: any frames
 * have a defined answer, and reading never goes beyond a frame's end.
 *
 * Model: a frame is one part of a ZMQ message. What a message is follows from the port that it came
 * to (prefill's or decode's), from its first frame and from the number of frames. The wire has no
 * version, so counts are taken exactly: a sender that merges two messages into one (seen in the
 * field) and a form that is not known here are refused as a whole.
 *
 *     to prefill   None ...            registration   14, 15 or 19 frames
 *                  ROOM ...            metadata       8, 9 or 10
 *                  ABORT ...           abort          2 (no return address), 4, or 5 (a token)
 *                  STAGING_RSP ...     7      WATERMARK ...  3 or 4
 *     to decode    ROOM ...            status         3, 4 (a reason) or 5 (and an HTTP status)
 *                  KV_STATUS ...       status of NIXL, 5; MoriMsgGuard ... status of Mori, 5 or 6
 *                  ABORT_ACK ...       2, 3 (rank), 4 (and the abort's generation)
 *                  AUX_DATA ... 6      CHUNK_READY ... 6 or 7    STAGING_REQ ... 5 or 6
 *
 * Towards a peer that has not shown that it knows longer ones, a status has three frames and an ack
 * is an answer to an abort: older decodes die of anything else. Which form is sent follows from the
 * fields that are set; choosing is the caller's.
 *
 * Ownership: a decoded message points into the frames; encoded frames point into the caller's
 * buffer.
 *
 * Limits: SGLANG_FRAMES_MAX frames, SGLANG_MESSAGE_BYTES_MAX bytes in all, SGLANG_TEXT_BYTES_MAX in
 * an address or a session, SGLANG_REASON_BYTES_MAX in a reason.
 *
 * Failure: STATUS_MALFORMED (broken), STATUS_UNSUPPORTED (a message of somebody else, or a newer
 * one), STATUS_TOO_LARGE; struct sglang_error names the reason and the frame. The caller drops that
 * one message.
 */
#ifndef SCHEMAS_SGLANG_H
#define SCHEMAS_SGLANG_H

#include "schemas/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SGLANG_FRAMES_MAX 19u
#define SGLANG_MESSAGE_BYTES_MAX ((size_t)4 << 20)
#define SGLANG_TEXT_BYTES_MAX 255u
#define SGLANG_REASON_BYTES_MAX 65536u
/* Rooms are below 2^63, and 0 is the mark of an unwritten metadata slot. */
#define SGLANG_ROOM_MAX ((UINT64_C(1) << 63) - 1u)

struct sglang_frame {
    const unsigned char *bytes;
    size_t size;
};

/* Text of a frame, not zero-terminated: printable ASCII, a reason excepted (any bytes). */
struct sglang_text {
    const char *bytes;
    uint32_t size;
};

/* Packed little-endian elements of `width` bytes. */
struct sglang_list {
    const unsigned char *bytes;
    uint32_t count;
    uint32_t width; /* 4 or 8 */
};
/* Element i < count. */
uint64_t sglang_list_at(const struct sglang_list *list, uint32_t i);

/* A list of lists, checked as a whole when decoded; an empty one has no frame bytes. */
struct sglang_lists {
    const unsigned char *bytes;
    uint32_t size;
    uint32_t count;
    uint32_t width;
};
/* Inner list i < count. */
struct sglang_list sglang_lists_at(const struct sglang_lists *lists, uint32_t i);

enum sglang_port { SGLANG_AT_PREFILL = 1, SGLANG_AT_DECODE = 2 };

#define SGLANG_KIND_LIST(X)             \
    X(REGISTRATION, 1, "registration")  \
    X(METADATA, 2, "metadata")          \
    X(ABORT, 3, "abort")                \
    X(STAGING_RSP, 4, "staging answer") \
    X(WATERMARK, 5, "watermark")        \
    X(STATUS, 6, "status")              \
    X(ABORT_ACK, 7, "abort ack")        \
    X(AUX_DATA, 8, "aux data")          \
    X(CHUNK_READY, 9, "chunk ready")    \
    X(STAGING_REQ, 10, "staging request")

enum sglang_kind {
    SGLANG_NOTHING = 0,
#define SGLANG_X(name, number, text) SGLANG_##name = (number),
    SGLANG_KIND_LIST(SGLANG_X)
#undef SGLANG_X
        SGLANG_KIND_COUNT
};

/* Where a decode rank is reached, and which process it is. */
struct sglang_origin {
    struct sglang_text ip;
    struct sglang_text session; /* "host:port", registration and metadata only */
    uint16_t port;
};

struct sglang_registration {
    struct sglang_origin origin;
    struct sglang_list kv_pointers;       /* u64, one for each buffer entry */
    struct sglang_list aux_pointers;      /* u64 */
    struct sglang_lists state_pointers;   /* u64 */
    uint32_t engine_rank;                 /* within the attention TP */
    uint32_t tp_size;                     /* of decode; engine_rank < tp_size */
    uint64_t kv_item_bytes;               /* of one page in entry 0 */
    struct sglang_lists state_item_bytes; /* u32 */
    struct sglang_lists state_dimensions; /* u32 */
    struct sglang_list kv_layer_ids;      /* u32; 19 frames only, as all that follow but staging */
    struct sglang_lists state_layer_ids;  /* u32 */
    uint64_t staging_base;                /* 0: no staging */
    uint64_t staging_bytes;
    uint32_t dcp_size; /* 1 without context parallelism */
    uint32_t dcp_rank;
    struct sglang_list staging_layer_ids; /* u64 */
    struct sglang_text capability;        /* 15 frames only */
    uint32_t frames;                      /* the form: 14, 15 or 19 */
};

struct sglang_metadata {
    struct sglang_origin origin;
    struct sglang_list pages; /* i32, none negative: destination pages in prompt order */
    uint64_t prefix_tokens;
    struct sglang_lists state_indices; /* i32 */
    struct sglang_list device_pages;   /* i32; 10 frames only */
    uint32_t aux_slot;
    uint32_t required; /* decode sessions that this rank must hear from, at least 1 */
    bool has_aux;      /* without one and without pages: a dummy, which gets no data */
    bool has_prefix;   /* 9 frames or more, and not empty */
    uint32_t frames;   /* 8, 9 or 10 */
};

struct sglang_abort {
    struct sglang_origin origin;
    struct sglang_text token; /* five frames; not empty */
    bool has_origin;          /* four or five frames */
    bool has_token;
    bool has_generation; /* the token is a number */
    uint64_t generation;
};

enum sglang_dialect { SGLANG_MOONCAKE = 0, SGLANG_NIXL = 1, SGLANG_MORI = 2 };

struct sglang_status {
    bool succeeded; /* 4; else 0, failed. No other value is ever sent */
    uint32_t rank;  /* which prefill rank says so */
    struct sglang_text reason;
    bool has_reason; /* four frames or more */
    bool has_http;   /* five frames, and not empty */
    uint16_t http;
    uint64_t generation; /* Mori's sixth frame */
    bool has_generation;
    enum sglang_dialect dialect;
};

struct sglang_ack {
    bool has_rank; /* without it the ack proves nothing */
    bool has_generation;
    uint32_t rank;
    uint64_t generation;
};

/* Staging and metadata over TCP: parsed, so that they are known for what they are. */
struct sglang_chunk {
    uint64_t chunk; /* staging, chunk_ready; aux_data: the buffer */
    uint64_t first; /* chunk_ready: page; staging_rsp: round; watermark: round; aux_data: slot */
    uint64_t count; /* pages; staging_rsp: end; watermark: tail; aux_data: bytes */
    int64_t offset; /* staging_rsp: -2 never, -1 not now */
    uint32_t rank;  /* chunk_ready, staging_req: the sender */
    bool has_rank;
    bool has_session;
    struct sglang_text session;
    struct sglang_list data; /* aux_data: bytes, width 1 */
};

struct sglang_message {
    enum sglang_kind kind;
    uint64_t room; /* 1..SGLANG_ROOM_MAX; 0 where a kind has none */
    union {
        struct sglang_registration registration;
        struct sglang_metadata metadata;
        struct sglang_abort abort;
        struct sglang_status status;
        struct sglang_ack ack;
        struct sglang_chunk chunk;
    } u;
};

#define SGLANG_FAULT_LIST(X)                                          \
    X(FRAME_COUNT, 1, "no form of it has that many frames")           \
    X(UNKNOWN_TAG, 2, "not a message that this port knows")           \
    X(DIALECT, 3, "a message of another transport")                   \
    X(NUMBER, 4, "not a decimal number in its range")                 \
    X(ROOM, 5, "not a room number (1 .. 2^63-1)")                     \
    X(TEXT, 6, "not an address or a session")                         \
    X(LIST, 7, "not a list of whole elements")                        \
    X(LISTS, 8, "not a list of lists")                                \
    X(LENGTH, 9, "the length that stands before the data is another") \
    X(SIZE, 10, "larger than a message may be")                       \
    X(SPACE, 11, "the buffer is too small")

enum sglang_fault {
    SGLANG_FAULT_NONE = 0,
#define SGLANG_X(name, number, text) SGLANG_FAULT_##name = (number),
    SGLANG_FAULT_LIST(SGLANG_X)
#undef SGLANG_X
        SGLANG_FAULT_COUNT
};

struct sglang_error {
    enum sglang_fault fault;
    uint32_t frame;        /* where; as far as one frame is to blame */
    enum sglang_kind kind; /* what it seemed to be; SGLANG_NOTHING: unknown */
};

/* One multipart message, as it came to a port of a prefill or of a decode rank. */
enum status sglang_decode(enum sglang_port port, const struct sglang_frame *frames, size_t count,
                          struct sglang_message *out_message, struct sglang_error *out_error);

/*
 * The frames of a message, in `buffer`; out_frames has SGLANG_FRAMES_MAX places. What decode would
 * refuse is refused here too.
 */
enum status sglang_encode(const struct sglang_message *message, unsigned char *buffer, size_t size,
                          struct sglang_frame *out_frames, size_t *out_count,
                          struct sglang_error *out_error);

const char *sglang_kind_name(enum sglang_kind kind);    /* "metadata"; "nothing" */
const char *sglang_fault_text(enum sglang_fault fault); /* "" for none */

#endif
