#include "frame.h"

static uint8_t checksum(const uint8_t *bytes, size_t count)
{
    uint8_t sum = 0;

    while (count-- > 0)
        sum += *bytes++;
    return sum;
}

int frame_put(struct ring *ring, const uint8_t *payload, size_t length)
{
    uint8_t header[3] = {FRAME_MARK, (uint8_t)(length >> 8), (uint8_t)length};
    uint8_t sum = checksum(payload, length);

    if (length > FRAME_MAX || ring_free(ring) < length + FRAME_EXTRA)
        return 0;
    ring_write(ring, header, sizeof header);
    ring_write(ring, payload, length);
    ring_write(ring, &sum, 1);
    return 1;
}

enum frame_status frame_next(struct ring *ring, uint8_t *payload, size_t *length)
{
    uint8_t header[3], sum;
    size_t size;

    if (ring_peek(ring, 0, header, 3) < 3)
        return FRAME_MORE;
    ring_drop(ring, 3);
    size = (size_t)header[1] << 8 | header[2];
    if (header[0] != FRAME_MARK || size > FRAME_MAX)
        return FRAME_BAD;
    if (ring_used(ring) < size + 1)
        return FRAME_MORE;
    ring_peek(ring, 0, payload, size);
    ring_peek(ring, size, &sum, 1);
    ring_drop(ring, size + 1);
    if (sum != checksum(payload, size))
        return FRAME_BAD;
    *length = size;
    return FRAME_OK;
}
