// `kvasir:expert/kernel@0.1.0` as a component's calling convention (the canonical ABI), written out, and the memory behind it: the
// contract is small and frozen. A new version of the contract is a new file like this one; nothing here needs a change for other
// arithmetic.
//
// Lists come in memory that the host asked `cabi_realloc` for and are ours from then on. An answer of more than one word lies in
// memory whose address is returned, and is ours again when the host calls the `cabi_post_` function of that name.
#include "kernel.h"

#define KERNEL "kvasir:expert/kernel@0.1.0"
#define EXPORT(name) __attribute__((export_name(name)))

// The host's handle for an expert that we know by its address.
__attribute__((import_module("[export]" KERNEL), import_name("[resource-new]expert"))) extern uint32_t new_handle(Expert *expert);

// `result<handle or list, fault>`: number of the case, then its payload.
typedef struct {
    uint32_t number;
    union {
        uint32_t handle;
        struct {
            float *values;
            size_t count;
        } list;
        struct {
            uint32_t number;
            const char *text;
            size_t length;
        } fault;
    } payload;
} Answer;

// Calls never overlap, so one place for answers is enough.
static Answer answer;

static Answer *refuse(Fault fault, const char *text) {
    size_t length = 0;
    while (text && text[length]) length++;
    answer = (Answer){.number = 1, .payload.fault = {fault, text, length}};
    return &answer;
}

static void drop_expert(Expert *expert) {
    release((void *)expert->gate.bytes);
    release((void *)expert->up.bytes);
    release((void *)expert->down.bytes);
    release(expert);
}

EXPORT(KERNEL "#[static]expert.load")
Answer *load(uint32_t gate_format, uint32_t gate_rows, uint32_t gate_columns, uint32_t up_format, uint32_t up_rows,
             uint32_t up_columns, uint32_t down_format, uint32_t down_rows, uint32_t down_columns, uint8_t *gate,
             size_t gate_length, uint8_t *up, size_t up_length, uint8_t *down, size_t down_length) {
    const Shape shapes[3] = {{gate_format, gate_rows, gate_columns}, {up_format, up_rows, up_columns}, {down_format, down_rows, down_columns}};
    uint8_t *const bytes[3] = {gate, up, down};
    const size_t lengths[3] = {gate_length, up_length, down_length};
    const char *text = NULL;
    Expert *expert = reserve(sizeof *expert);
    Fault fault = expert_load(expert, shapes, bytes, lengths, &text);
    if (fault != NO_FAULT) {
        for (int i = 0; i < 3; i++) release(bytes[i]);
        release(expert);
        return refuse(fault, text);
    }
    answer = (Answer){.number = 0, .payload.handle = new_handle(expert)};
    return &answer;
}

EXPORT(KERNEL "#[method]expert.forward")
Answer *forward(const Expert *expert, uint8_t *rows, size_t length, uint32_t count) {
    float *values = NULL;
    size_t value_count = 0;
    Fault fault = expert_forward(expert, rows, length, count, &values, &value_count);
    release(rows);
    if (fault != NO_FAULT) return refuse(fault, NULL);
    answer = (Answer){.number = 0, .payload.list = {values, value_count}};
    return &answer;
}

EXPORT("cabi_post_" KERNEL "#[method]expert.forward")
void after_forward(Answer *given) {
    if (given->number == 0) release(given->payload.list.values);
}

EXPORT(KERNEL "#[dtor]expert")
void destructor(Expert *expert) {
    drop_expert(expert);
}

// Memory: a list of free pieces in ascending address; what is released is joined with its neighbours, so that experts that come
// and go leave no holes. A piece begins with its size; pieces are multiples of 16 bytes.
typedef struct Piece {
    size_t size;
    struct Piece *next;
    size_t padding[2];
} Piece;

extern uint8_t __heap_base;
static Piece first = {0, NULL, {0, 0}};
static uintptr_t end;

void *reserve(size_t bytes) {
    if (bytes > SIZE_MAX - sizeof(Piece) - 65551) __builtin_trap();
    size_t size = (bytes + sizeof(Piece) + 15) & ~(size_t)15;
    for (Piece *before = &first, *piece; (piece = before->next); before = piece) {
        if (piece->size < size) continue;
        if (piece->size >= size + 2 * sizeof(Piece)) {
            piece->size -= size;
            piece = (Piece *)((uint8_t *)piece + piece->size);
            piece->size = size;
        } else {
            before->next = piece->next;
        }
        return piece + 1;
    }
    // None fits: grow by whole pages of 64 KiB. What was there before the first call, from the heap's base, is added too.
    if (end == 0) end = ((uintptr_t)&__heap_base + 15) & ~(uintptr_t)15;
    size_t have = (__builtin_wasm_memory_size(0) << 16) - end;
    size_t pages = have >= size ? 0 : (size - have + 65535) >> 16;
    if (pages && __builtin_wasm_memory_grow(0, pages) == SIZE_MAX) __builtin_trap();
    Piece *fresh = (Piece *)end;
    fresh->size = have + (pages << 16);
    end += fresh->size;
    release(fresh + 1);
    return reserve(bytes);
}

void release(void *memory) {
    if ((uintptr_t)memory < (uintptr_t)&__heap_base) return; // an empty list
    Piece *piece = (Piece *)memory - 1, *before = &first;
    while (before->next && before->next < piece) before = before->next;
    piece->next = before->next;
    before->next = piece;
    if (piece->next && (uint8_t *)piece + piece->size == (uint8_t *)piece->next) {
        piece->size += piece->next->size;
        piece->next = piece->next->next;
    }
    if (before != &first && (uint8_t *)before + before->size == (uint8_t *)piece) {
        before->size += piece->size;
        before->next = piece->next;
    }
}

// The host asks for fresh memory only; nothing it is given needs more than 16 bytes of alignment.
EXPORT("cabi_realloc")
void *cabi_realloc(void *old, size_t old_bytes, size_t align, size_t bytes) {
    if (bytes == 0) return (void *)align;
    uint8_t *new = reserve(bytes);
    for (size_t i = 0; i < old_bytes && i < bytes; i++) new[i] = ((uint8_t *)old)[i];
    if (old_bytes) release(old);
    return new;
}
