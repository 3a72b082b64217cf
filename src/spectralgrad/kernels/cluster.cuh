// Blocks of a cluster: where they wait for each other, and how one reaches the shared memory of another.

#ifdef __CUDA_ARCH__
// All threads of all blocks come here; what each wrote before, to memory of any block, the others see behind it.
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// What lies in the shared memory of block `other` at the place of x in this one's.
template <class T>
__device__ __forceinline__ T* in_block(T* x, unsigned other) {
    T* y;
    asm("mapa.u64 %0, %1, %2;" : "=l"(y) : "l"(x), "r"(other));
    return y;
}
#endif
