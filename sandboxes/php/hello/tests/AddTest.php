<?php

use PHPUnit\Framework\TestCase;

require_once __DIR__ . '/../src/add.php';

final class AddTest extends TestCase
{
    public function testAdds(): void
    {
        $this->assertSame(5, add(2, 3));
    }

    public function testAddsNothing(): void
    {
        $this->assertSame(2, add(2, 0));
    }
}
