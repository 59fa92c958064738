<?php

// Bootstrap of PHPUnit in grading: the test files below tests/ are empty while code runs that could read them, and each says
// what it said to PHPUnit alone, which includes it once. They are put back at the end of the process.

final class SweRlAway
{
    /** @var array<string, string> */
    private static array $texts = [];
    private string $text = '';
    private int $position = 0;
    /** @var resource|null */
    private $handle = null;
    /** @var resource|null */
    public $context;

    public static function begin(string $root): void
    {
        $texts = [];
        $files = new RecursiveIteratorIterator(new RecursiveDirectoryIterator($root, FilesystemIterator::SKIP_DOTS));
        foreach ($files as $file) {
            if ($file->isFile() && !$file->isLink() && str_ends_with($file->getFilename(), 'Test.php')) {
                $texts[$file->getRealPath()] = file_get_contents($file->getPathname());
            }
        }
        foreach (array_keys($texts) as $path) {
            file_put_contents($path, '');
        }
        self::$texts = $texts;
        register_shutdown_function(static function () use ($texts): void {
            foreach ($texts as $path => $text) {
                // What somebody else put there stays, to be found.
                clearstatcache();
                if (is_file($path) && !is_link($path) && filesize($path) === 0) {
                    file_put_contents($path, $text);
                }
            }
        });
        self::wrap();
    }

    private static function wrap(): void
    {
        stream_wrapper_unregister('file');
        stream_wrapper_register('file', self::class);
    }

    /** What PHP itself would do, while the wrapper is off. It stays off once every test file was included. */
    private static function natively(callable $call): mixed
    {
        @stream_wrapper_restore('file');
        try {
            return $call();
        } finally {
            if (self::$texts !== []) {
                self::wrap();
            }
        }
    }

    public function stream_open(string $path, string $mode, int $options, ?string &$opened): bool
    {
        $real = self::natively(static fn () => realpath($path));
        if (($options & 0x80) !== 0 && $real !== false && isset(self::$texts[$real])) { // for an include
            $this->text = self::$texts[$real];
            unset(self::$texts[$real]);
            $opened = $real;
            if (self::$texts === []) {
                stream_wrapper_restore('file');
            }
            return true;
        }
        $context = $this->context;
        $use = ($options & STREAM_USE_PATH) !== 0;
        $this->handle = self::natively(static fn () => $context ? @fopen($path, $mode, $use, $context) : @fopen($path, $mode, $use)) ?: null;
        return $this->handle !== null;
    }

    public function stream_read(int $count): string|false
    {
        if ($this->handle !== null) {
            return fread($this->handle, $count);
        }
        $part = substr($this->text, $this->position, $count);
        $this->position += strlen($part);
        return $part;
    }

    public function stream_eof(): bool
    {
        return $this->handle !== null ? feof($this->handle) : $this->position >= strlen($this->text);
    }

    public function stream_stat(): array|false
    {
        return $this->handle !== null ? fstat($this->handle) : ['size' => strlen($this->text), 'mode' => 0o100644];
    }

    public function stream_write(string $data): int
    {
        return $this->handle !== null ? (int) fwrite($this->handle, $data) : 0;
    }

    public function stream_flush(): bool
    {
        return $this->handle !== null && fflush($this->handle);
    }

    public function stream_seek(int $offset, int $whence = SEEK_SET): bool
    {
        return $this->handle !== null && fseek($this->handle, $offset, $whence) === 0;
    }

    public function stream_tell(): int
    {
        return $this->handle !== null ? (int) ftell($this->handle) : $this->position;
    }

    public function stream_truncate(int $size): bool
    {
        return $this->handle !== null && ftruncate($this->handle, $size);
    }

    public function stream_lock(int $operation): bool
    {
        return $this->handle !== null && flock($this->handle, $operation);
    }

    public function stream_close(): void
    {
        if ($this->handle !== null) {
            fclose($this->handle);
        }
    }

    public function stream_set_option(int $option, int $first, int $second): bool
    {
        return false;
    }

    public function stream_metadata(string $path, int $option, mixed $value): bool
    {
        return self::natively(static fn () => match ($option) {
            STREAM_META_TOUCH => touch($path, ...$value),
            STREAM_META_ACCESS => chmod($path, $value),
            default => false,
        });
    }

    public function url_stat(string $path, int $flags): array|false
    {
        return self::natively(static fn () => ($flags & STREAM_URL_STAT_LINK) !== 0 ? @lstat($path) : @stat($path));
    }

    public function unlink(string $path): bool
    {
        return self::natively(static fn () => unlink($path));
    }

    public function rename(string $from, string $to): bool
    {
        return self::natively(static fn () => rename($from, $to));
    }

    public function mkdir(string $path, int $mode, int $options): bool
    {
        return self::natively(static fn () => mkdir($path, $mode, ($options & STREAM_MKDIR_RECURSIVE) !== 0));
    }

    public function rmdir(string $path, int $options): bool
    {
        return self::natively(static fn () => rmdir($path));
    }

    public function dir_opendir(string $path, int $options): bool
    {
        $this->handle = self::natively(static fn () => @opendir($path)) ?: null;
        return $this->handle !== null;
    }

    public function dir_readdir(): string|false
    {
        return readdir($this->handle);
    }

    public function dir_rewinddir(): bool
    {
        rewinddir($this->handle);
        return true;
    }

    public function dir_closedir(): bool
    {
        closedir($this->handle);
        return true;
    }
}

if (getenv('SWE_RL_HIDDEN') !== false) {
    putenv('SWE_RL_HIDDEN');
    unset($_ENV['SWE_RL_HIDDEN'], $_SERVER['SWE_RL_HIDDEN']);
    SweRlAway::begin('tests');
}
