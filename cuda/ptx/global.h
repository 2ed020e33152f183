// Global memory: vectors of four, single elements, and counters by which warps of different CTAs hand over what they
// stored.
#pragma once

#include "ptx/thread.h"

namespace jaxbw::ptx {

JAXBW_DEVICE void store_global(float* address, float x, float y, float z, float w) {
  asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(address), "f"(x), "f"(y), "f"(z), "f"(w) : "memory");
}

JAXBW_DEVICE void load_global(float (&v)[4], const float* address) {
  asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
               : "l"(address)
               : "memory");
}

// What no kernel writes before this one ends, through the cache of the SM.
JAXBW_DEVICE float load_read_only(const float* address) {
  float value;
  asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(value) : "l"(address));
  return value;
}

// Sixteen bytes; the address is a multiple of 16.
JAXBW_DEVICE void load_global(uint32_t (&v)[4], const void* address) {
  asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "l"(address)
               : "memory");
}

// Four bytes; the address is a multiple of 4.
JAXBW_DEVICE uint32_t load_global(const void* address) {
  uint32_t value;
  asm volatile("ld.global.b32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

JAXBW_DEVICE void store_global(void* address, uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}

// Eight bytes; the address is a multiple of 8.
JAXBW_DEVICE void store_global(void* address, uint32_t x, uint32_t y) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(address), "r"(x), "r"(y) : "memory");
}

JAXBW_DEVICE void store_global(uint64_t address, uint8_t x) {
  asm volatile("st.global.b8 [%0], %1;" ::"l"(address), "h"(uint16_t{x}) : "memory");
}

JAXBW_DEVICE void store_global(uint64_t address, uint16_t x) {
  asm volatile("st.global.b16 [%0], %1;" ::"l"(address), "h"(x) : "memory");
}

JAXBW_DEVICE void store_global(uint64_t address, uint32_t x) {
  asm volatile("st.global.b32 [%0], %1;" ::"l"(address), "r"(x) : "memory");
}

// Brings the line of 128 bytes that holds an address into L2; nobody waits for it (PTX 9.7.9.16).
JAXBW_DEVICE void prefetch_l2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address) : "memory");
}

// Adds to a counter and returns what it held. Everything that this thread stored or saw before is visible to whoever
// sees the sum (PTX 8.8: release and acquire patterns at gpu scope).
JAXBW_DEVICE uint32_t add_acq_rel(uint32_t* counter, uint32_t value) {
  uint32_t before;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(value) : "memory");
  return before;
}

// The same, ordering nothing.
JAXBW_DEVICE uint32_t fetch_add_relaxed(uint32_t* counter, uint32_t value) {
  uint32_t before;
  asm volatile("atom.add.relaxed.gpu.global.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(value) : "memory");
  return before;
}

// The same, without an answer to wait for.
JAXBW_DEVICE void add_relaxed(uint32_t* counter, uint32_t value) {
  asm volatile("red.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(counter), "r"(value) : "memory");
}

// Adds 1, or makes it zero where it was `last`, likewise.
JAXBW_DEVICE void wrap_relaxed(uint32_t* counter, uint32_t last) {
  asm volatile("red.relaxed.gpu.global.inc.u32 [%0], %1;" ::"l"(counter), "r"(last) : "memory");
}

// Makes a number the larger one of itself and another, likewise.
JAXBW_DEVICE void max_relaxed(uint32_t* number, uint32_t other) {
  asm volatile("red.relaxed.gpu.global.max.u32 [%0], %1;" ::"l"(number), "r"(other) : "memory");
}

JAXBW_DEVICE uint32_t load_relaxed(const uint32_t* counter) {
  uint32_t value;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  return value;
}

// What was visible to whoever made the counter what it is, by add_acq_rel, is visible to this thread.
JAXBW_DEVICE uint32_t load_acquire(const uint32_t* counter) {
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  return value;
}

}  // namespace jaxbw::ptx
