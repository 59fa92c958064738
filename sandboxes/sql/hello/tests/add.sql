INSERT INTO pairs VALUES (2, 3), (2, 0);
INSERT INTO tests SELECT 'adds', (SELECT total FROM sums WHERE b = 3), 5;
INSERT INTO tests SELECT 'adds nothing', (SELECT total FROM sums WHERE b = 0), 2;
