/* Frames in a ring buffer: 0x7e, length (2 bytes, big-endian), payload, checksum. */
#ifndef FRAME_H
#define FRAME_H

#include "ring.h"

#define FRAME_MARK 0x7e
#define FRAME_MAX 256 /* the longest payload */
#define FRAME_EXTRA 4 /* bytes of a frame beside its payload */

enum frame_status {
    FRAME_OK,   /* a payload was taken out */
    FRAME_MORE, /* there is no whole frame yet */
    FRAME_BAD   /* something that isn't a frame was skipped; call again */
};

/* Appends a frame if it fits: 1, else nothing: 0. */
int frame_put(struct ring *ring, const uint8_t *payload, size_t length);

/* Takes the next frame's payload out; `payload` has room for FRAME_MAX bytes. */
enum frame_status frame_next(struct ring *ring, uint8_t *payload, size_t *length);

#endif
