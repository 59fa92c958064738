#include "frame.h"
#include "tap.h"

static uint8_t memory[64], payload[FRAME_MAX];
static struct ring ring;
static size_t length;

TEST(what_is_put_comes_out)
{
    ring_init(&ring, memory, sizeof memory);
    CHECK(frame_put(&ring, (const uint8_t *)"hello", 5));
    CHECK_INT(frame_next(&ring, payload, &length), FRAME_OK);
    CHECK_INT(length, 5);
    CHECK(memcmp(payload, "hello", 5) == 0);
    CHECK_INT(frame_next(&ring, payload, &length), FRAME_MORE);
}

TEST(an_empty_payload_is_a_frame)
{
    ring_init(&ring, memory, sizeof memory);
    CHECK(frame_put(&ring, payload, 0));
    CHECK_INT(frame_next(&ring, payload, &length), FRAME_OK);
    CHECK_INT(length, 0);
}

TEST(a_wrong_checksum_is_bad)
{
    ring_init(&ring, memory, sizeof memory);
    CHECK(ring_write(&ring, (const uint8_t *)"\x7e\0\1A\0", 5));
    CHECK_INT(frame_next(&ring, payload, &length), FRAME_BAD);
}

TEST(a_frame_that_does_not_fit_is_refused)
{
    ring_init(&ring, memory, sizeof memory);
    CHECK(!frame_put(&ring, payload, 61));
    CHECK_INT(ring_used(&ring), 0);
}
