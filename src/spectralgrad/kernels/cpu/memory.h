// Memory of one call: aligned, given back at its end.

#pragma once
#include <stdlib.h>

#include "vector.h"

namespace {

class Memory {
    char* whole;

  public:
    explicit Memory(size_t vectors) : whole((char*)malloc((vectors + 1) * BYTES)) {}
    ~Memory() { free(whole); }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    explicit operator bool() const { return whole; }
    template <class X> X* as() const { return (X*)(whole + (BYTES - (size_t)whole % BYTES) % BYTES); }
};

}  // namespace
