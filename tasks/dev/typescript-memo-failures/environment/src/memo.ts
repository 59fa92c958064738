import { Cache, CacheOptions } from './cache';

export interface Memoized<V> {
  (argument: string): Promise<V>;
  /** Forgets one argument's result. */
  forget(argument: string): void;
}

/** `fn` with memory: a call with an argument whose result is remembered doesn't call `fn`. */
export function memoizeAsync<V>(fn: (argument: string) => Promise<V>, options: CacheOptions): Memoized<V> {
  const cache = new Cache<Promise<V>>(options);

  const memoized = (argument: string): Promise<V> => {
    const known = cache.get(argument);
    if (known !== undefined) return known;
    const result = fn(argument);
    cache.set(argument, result);
    return result;
  };

  return Object.assign(memoized, {
    forget: (argument: string): void => {
      cache.delete(argument);
    },
  });
}
