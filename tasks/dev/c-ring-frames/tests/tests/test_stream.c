#include "frame.h"
#include "tap.h"

static uint8_t memory[64], payload[FRAME_MAX];
static struct ring ring;
static size_t length;

static void feed(const char *bytes, size_t count)
{
    CHECK(ring_write(&ring, (const uint8_t *)bytes, count));
}

static void expect_frame(const char *text)
{
    length = 999;
    CHECK_INT(frame_next(&ring, payload, &length), FRAME_OK);
    CHECK_INT(length, strlen(text));
    CHECK(memcmp(payload, text, length) == 0);
}

TEST(a_frame_in_pieces_comes_out_whole)
{
    const char frame[] = "\x7e\0\2AB\x83";

    ring_init(&ring, memory, sizeof memory);
    for (int i = 0; i < 6; i++) {
        CHECK_INT(frame_next(&ring, payload, &length), FRAME_MORE);
        CHECK_INT(ring_used(&ring), i);
        feed(frame + i, 1);
    }
    expect_frame("AB");
    CHECK_INT(ring_used(&ring), 0);
}

TEST(frames_cross_the_end_of_memory)
{
    char put[] = "a..", taken[] = "a..";

    ring_init(&ring, memory, 16);
    CHECK(frame_put(&ring, (const uint8_t *)put, 3));
    for (int i = 0; i < 50; i++) {
        put[0] = (char)('a' + (i + 1) % 26);
        taken[0] = (char)('a' + i % 26);
        CHECK(frame_put(&ring, (const uint8_t *)put, 3));
        expect_frame(taken);
    }
}

TEST(peek_wraps_around)
{
    uint8_t out[9] = {0};

    ring_init(&ring, memory, 8);
    feed("abcdef", 6);
    CHECK_INT(ring_drop(&ring, 5), 5);
    feed("ghijkl", 6);
    CHECK_INT(ring_peek(&ring, 0, out, 8), 7);
    CHECK_STR((char *)out, "fghijkl");
    memset(out, 0, sizeof out);
    CHECK_INT(ring_peek(&ring, 2, out, 3), 3);
    CHECK_STR((char *)out, "hij");
    memset(out, 0, sizeof out);
    CHECK_INT(ring_peek(&ring, 5, out, 8), 2);
    CHECK_STR((char *)out, "kl");
    CHECK_INT(ring_peek(&ring, 7, out, 1), 0);
}

TEST(noise_before_a_frame_is_skipped_at_once)
{
    ring_init(&ring, memory, sizeof memory);
    feed("xyz\x7e\0\1AA", 8);
    length = 999;
    CHECK_INT(frame_next(&ring, payload, &length), FRAME_BAD);
    CHECK_INT(length, 999);
    CHECK_INT(ring_used(&ring), 5);
    expect_frame("A");
}

TEST(a_single_stray_byte_is_bad_without_waiting)
{
    ring_init(&ring, memory, sizeof memory);
    feed("x", 1);
    CHECK_INT(frame_next(&ring, payload, &length), FRAME_BAD);
    CHECK_INT(ring_used(&ring), 0);
    CHECK_INT(frame_next(&ring, payload, &length), FRAME_MORE);
}

TEST(a_frame_inside_a_broken_one_is_found)
{
    ring_init(&ring, memory, sizeof memory);
    feed("\x7e\0\5\x7e\0\1AA?", 9);
    CHECK_INT(frame_next(&ring, payload, &length), FRAME_BAD);
    expect_frame("A");
    CHECK_INT(frame_next(&ring, payload, &length), FRAME_BAD);
    CHECK_INT(ring_used(&ring), 0);
}

TEST(a_mark_before_a_frame_is_skipped)
{
    ring_init(&ring, memory, sizeof memory);
    feed("\x7e\x7e\0\1AA", 6);
    CHECK_INT(frame_next(&ring, payload, &length), FRAME_BAD);
    CHECK_INT(ring_used(&ring), 5);
    expect_frame("A");
}

TEST(an_impossible_length_is_bad_as_soon_as_it_is_known)
{
    ring_init(&ring, memory, sizeof memory);
    feed("\x7e\1\1", 3);
    CHECK_INT(frame_next(&ring, payload, &length), FRAME_BAD);
    CHECK_INT(ring_used(&ring), 0);
}

TEST(a_frame_that_can_never_fit_is_bad)
{
    ring_init(&ring, memory, 16);
    feed("\x7e\0\x0d" "A", 4);
    CHECK_INT(frame_next(&ring, payload, &length), FRAME_BAD);
    ring_init(&ring, memory, 16);
    feed("\x7e\0\x0c" "A", 4);
    CHECK_INT(frame_next(&ring, payload, &length), FRAME_MORE);
    CHECK_INT(ring_used(&ring), 4);
}

TEST(a_search_for_the_next_mark_wraps_around)
{
    ring_init(&ring, memory, 12);
    feed("0123456789", 10);
    CHECK_INT(ring_drop(&ring, 9), 9);
    feed("xx\x7e\0\1AA", 7);
    CHECK_INT(frame_next(&ring, payload, &length), FRAME_BAD);
    CHECK_INT(ring_used(&ring), 5);
    expect_frame("A");
}

TEST(the_longest_payload_passes)
{
    static uint8_t big[FRAME_MAX + FRAME_EXTRA];
    uint8_t text[FRAME_MAX];

    memset(text, 'q', sizeof text);
    ring_init(&ring, big, sizeof big);
    CHECK(frame_put(&ring, text, sizeof text));
    CHECK_INT(frame_next(&ring, payload, &length), FRAME_OK);
    CHECK_INT(length, FRAME_MAX);
    CHECK(memcmp(payload, text, sizeof text) == 0);
}
