// What each instruction set offers.
#pragma once

#include "interface.h"

struct Functions {
    void* (*make)(const ChainSpec*);
    void (*remove)(void*);
    void (*train)(void*, const Training*);
    void (*evaluate)(void*, const Evaluation*);
    bool (*find_slope)(void*, const Slope*);
    int bytes;
};
