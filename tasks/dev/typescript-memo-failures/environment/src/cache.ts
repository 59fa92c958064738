import { Clock, systemClock } from './clock';

interface Entry<V> {
  value: V;
  expires: number;
}

export interface CacheOptions {
  capacity: number;
  ttl: number;
  clock?: Clock;
}

/** At most `capacity` entries; the least recently used goes first. An entry is gone `ttl` ms after it was set. */
export class Cache<V> {
  // A Map iterates in order of insertion: the first key is the least recently used.
  private readonly entries = new Map<string, Entry<V>>();
  private readonly capacity: number;
  private readonly ttl: number;
  private readonly clock: Clock;

  constructor(options: CacheOptions) {
    if (options.capacity < 1) throw new RangeError(`capacity must be at least 1, got ${options.capacity}`);
    this.capacity = options.capacity;
    this.ttl = options.ttl;
    this.clock = options.clock ?? systemClock;
  }

  get size(): number {
    return this.entries.size;
  }

  get(key: string): V | undefined {
    const entry = this.entries.get(key);
    if (entry === undefined) return undefined;
    if (entry.expires <= this.clock.now()) {
      this.entries.delete(key);
      return undefined;
    }
    this.entries.delete(key);
    this.entries.set(key, entry);
    return entry.value;
  }

  set(key: string, value: V): void {
    this.entries.delete(key);
    this.entries.set(key, { value, expires: this.clock.now() + this.ttl });
    while (this.entries.size > this.capacity) {
      const [oldest] = this.entries.keys();
      this.entries.delete(oldest);
    }
  }

  delete(key: string): boolean {
    return this.entries.delete(key);
  }

  clear(): void {
    this.entries.clear();
  }
}
