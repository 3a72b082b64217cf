// What races.cpp asks of the emulator, and it of that.
#pragma once

struct Moment {  // when a thread does something
    unsigned block, thread;
    unsigned long of_cluster, of_block, of_warp;  // barriers that are behind it
};
Moment now();
bool is_shared(const void* address);   // inside the shared memory of a block of this cluster
bool is_private(const void* address);  // a thread's stack, what it leaves for a vote or a shuffle, the host's

struct Watcher {
    void (*begin)(unsigned cluster);  // a launch, in clusters of so many blocks
    void (*forget)(const void* first, unsigned long bytes);  // memory that is memory of others from now on
};
extern Watcher* watcher;  // null where nobody looks for races
