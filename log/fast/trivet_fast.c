/* The loops over bytes of a broker's log, in C. log/formats/loops.py says where they are used, and what they replace.
 *
 * Each function does what is plain, and returns None for everything else: what is damaged, odd, of the wrong type or
 * too much for the memory goes to the pure code, which takes it or says what is wrong. All lengths are checked before
 * what they lead to is read, and each is read once: a mapping may change meanwhile. There is no state; the GIL is held.
 * Layouts: log/formats/layout.py, log/formats/record.py. A function whose arguments or results change gets another name.
 */
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>
#include <zlib.h>
enum { HEADER = 48, UNIT = 32, QUEUE_UNIT = 20, FRONT = 136, MOST_GROUPS = 64, MOST_MESSAGES = 4096, MOST_KEYS = 16384 };
static const uint32_t MAGIC_V1 = 0xDAA320A7u, MAGIC_V2 = 0xDAA320ABu;
static const int64_t PLACE_MAX = (int64_t)1 << 61; /* sums of two of them and of sizes do not overflow */
typedef unsigned char byte;
static uint32_t get32(const byte *p) { return (uint32_t)p[0] << 24 | p[1] << 16 | p[2] << 8 | p[3]; }
static uint64_t get64(const byte *p) { return (uint64_t)get32(p) << 32 | get32(p + 4); }
static byte *put16(byte *p, uint32_t v) { return p[0] = (byte)(v >> 8), p[1] = (byte)v, p + 2; }
static byte *put32(byte *p, uint32_t v) { return put16(put16(p, v >> 16), v & 0xFFFF); }
static byte *put64(byte *p, uint64_t v) { return put32(put32(p, (uint32_t)(v >> 32)), (uint32_t)v); }
static byte *put(byte *p, const Py_buffer *v) { return v->len ? memcpy(p, v->buf, (size_t)v->len) : NULL, p + v->len; }

/* True if the object is contiguous bytes; the caller releases the view then. */
static int view_of(PyObject *object, Py_buffer *view, int flags) {
    if (PyObject_GetBuffer(object, view, flags) == 0) {
        if (view->itemsize == 1) return 1;
        PyBuffer_Release(view);
    }
    PyErr_Clear();
    return 0;
}

static int integer(PyObject *object, int64_t least, int64_t most, int64_t *value) {
    *value = PyLong_AsLongLong(object);
    int failed = *value == -1 && PyErr_Occurred();
    if (failed) PyErr_Clear();
    return !failed && least <= *value && *value <= most;
}

static void put_unit(byte *p, uint64_t position, uint32_t size, uint64_t index, uint64_t term) {
    put64(put64(put32(put64(put32(p, 1), position), size), index), term);
}

/* check_entries(data, first_index, position) -> (count, index units, ((first index, term), ...)) */
static PyObject *check_entries(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    Py_buffer view;
    int64_t first, position, last_term = 0;
    if (nargs != 3 || !integer(args[1], 0, PLACE_MAX, &first) || !integer(args[2], 0, PLACE_MAX, &position) ||
        !view_of(args[0], &view, PyBUF_SIMPLE))
        Py_RETURN_NONE;
    const byte *data = view.buf;
    size_t at = 0, end = (size_t)view.len, count = 0, room = 0;
    byte *units = NULL;
    PyObject *result = NULL, *spans = PyList_New(0);
    while (spans && at < end) {
        const byte *p = data + at;
        if (end - at < HEADER) break;
        int64_t size = (int32_t)get32(p + 4), body = (int32_t)get32(p + 44), term = (int64_t)get64(p + 16);
        if (get32(p) != 1 || get64(p + 32) || body < 0 || size != body + HEADER || (uint64_t)size > end - at ||
            (int64_t)get64(p + 8) != first + (int64_t)count || (int64_t)get64(p + 24) != position + (int64_t)at ||
            term < last_term || crc32_z(0, p + HEADER, (size_t)body) != get32(p + 40))
            break;
        if (!count || term != last_term) {
            PyObject *span = Py_BuildValue("(LL)", (long long)first + (long long)count, (long long)term);
            int failed = !span || PyList_Append(spans, span) < 0;
            Py_XDECREF(span);
            if (failed) goto done;
        }
        if (count == room) {
            room = count ? 2 * count : end / (size_t)size + 1;
            byte *larger = PyMem_Realloc(units, room * UNIT);
            if (!larger) break;
            units = larger;
        }
        put_unit(units + UNIT * count, position + at, (uint32_t)size, first + count, (uint64_t)term);
        last_term = term, at += (size_t)size, count++;
    }
    if (spans && (at < end || !count))
        result = Py_NewRef(Py_None);
    else if (spans)
        result = Py_BuildValue("(ny#N)", (Py_ssize_t)count, units, (Py_ssize_t)(count * UNIT), PyList_AsTuple(spans));
done:
    PyMem_Free(units);
    Py_XDECREF(spans);
    PyBuffer_Release(&view);
    return result;
}

/* store_entry(buffer, at, units, unit_at, term, index, position, body) -> True */
static PyObject *store_entry(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    Py_buffer data, units, body;
    int64_t at, unit_at, term, index, position;
    int done = 0;
    if (nargs != 8 || !integer(args[1], 0, PLACE_MAX, &at) || !integer(args[3], 0, PLACE_MAX, &unit_at) ||
        !integer(args[4], INT64_MIN, INT64_MAX, &term) || !integer(args[5], INT64_MIN, INT64_MAX, &index) ||
        !integer(args[6], INT64_MIN, INT64_MAX, &position) || !view_of(args[7], &body, PyBUF_SIMPLE))
        Py_RETURN_NONE;
    if (view_of(args[0], &data, PyBUF_WRITABLE)) {
        if (view_of(args[2], &units, PyBUF_WRITABLE)) {
            if (body.len <= INT32_MAX - HEADER && at <= data.len - HEADER - body.len && unit_at <= units.len - UNIT) {
                uint32_t size = (uint32_t)body.len + HEADER;
                byte *p = put32(put32((byte *)data.buf + at, 1), size);
                p = put64(put64(put64(p, (uint64_t)index), (uint64_t)term), (uint64_t)position);
                p = put32(put32(put64(p, 0), (uint32_t)crc32_z(0, body.buf, (size_t)body.len)), size - HEADER);
                if (body.len) memmove(p, body.buf, (size_t)body.len);
                put_unit((byte *)units.buf + unit_at, (uint64_t)position, size, (uint64_t)index, (uint64_t)term);
                done = 1;
            }
            PyBuffer_Release(&units);
        }
        PyBuffer_Release(&data);
    }
    PyBuffer_Release(&body);
    return Py_NewRef(done ? Py_True : Py_None);
}

/* encode_record(...) -> the record; its arguments are those of log.record.encode_record. */
static PyObject *encode_record(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    static const byte viewed[] = {0, 7, 9, 12, 13}; /* topic, born host, store host, body, properties */
    static const byte numbers[] = {1, 2, 3, 4, 5, 6, 8, 10, 11}, is_long[] = {0, 0, 1, 1, 0, 1, 1, 0, 1};
    Py_buffer views[5];
    int64_t n[9];
    int held = 0;
    PyObject *result = NULL;
    if (nargs != 14) Py_RETURN_NONE;
    for (int i = 0; i < 9; i++)
        if (!integer(args[numbers[i]], is_long[i] ? INT64_MIN : INT32_MIN, is_long[i] ? INT64_MAX : INT32_MAX, n + i))
            Py_RETURN_NONE;
    while (held < 5 && view_of(args[viewed[held]], views + held, PyBUF_SIMPLE)) held++;
    if (held == 5) {
        const Py_buffer *topic = views, *born = views + 1, *stored = born + 1, *body = born + 2, *properties = born + 3;
        Py_ssize_t beside = 75 + born->len + stored->len + topic->len + properties->len + (topic->len > 127);
        if (topic->len <= 255 && properties->len <= 32767 && (born->len == 8 || born->len == 20) &&
            (stored->len == 8 || stored->len == 20) && body->len <= INT32_MAX - beside &&
            (result = PyBytes_FromStringAndSize(NULL, beside + body->len))) {
            byte *p = (byte *)PyBytes_AsString(result);
            uint32_t flags = ((uint32_t)n[4] & ~0x30u) | (born->len == 20) << 4 | (stored->len == 20) << 5;
            p = put32(put32(p, (uint32_t)(beside + body->len)), topic->len > 127 ? MAGIC_V2 : MAGIC_V1);
            p = put32(p, (uint32_t)crc32_z(0, body->buf, (size_t)body->len) & 0x7FFFFFFFu);
            p = put64(put64(put32(put32(p, (uint32_t)n[0]), (uint32_t)n[1]), (uint64_t)n[2]), (uint64_t)n[3]);
            p = put(put64(put32(p, flags), (uint64_t)n[5]), born);
            p = put(put64(p, (uint64_t)n[6]), stored);
            p = put32(put64(put32(p, (uint32_t)n[7]), (uint64_t)n[8]), (uint32_t)body->len);
            p = put(p, body);
            if (topic->len > 127) *p++ = (byte)(topic->len >> 8);
            *p++ = (byte)topic->len;
            put(put16(put(p, topic), (uint32_t)properties->len), properties);
        }
    }
    while (held) PyBuffer_Release(views + --held);
    return result || PyErr_Occurred() ? result : Py_NewRef(Py_None);
}

typedef struct { const byte *begin, *end; } Bytes;
typedef struct { int64_t offset, time; int32_t hash, unused; } Key; /* as `log.formats.loops.KEY_TYPE` has it */
typedef struct { Key *keys; size_t count, room; } Keys;
typedef struct { Bytes topic; uint32_t queue_id, prefix; int64_t first, next; } Group; /* of one queue, in order */

/* Goes on with the Java hash of a string of ASCII; false if it is none. */
static int java_hash(uint32_t *hash, const byte *p, const byte *end) {
    for (; p < end; p++) {
        if (*p >= 0x80) return 0;
        *hash = 31 * *hash + *p;
    }
    return 1;
}

/* Finds TAGS, UNIQ_KEY and KEYS: of several the last that has a value. */
static void find_properties(const byte *p, const byte *end, Bytes found[3]) {
    static const char *const names[] = {"TAGS", "UNIQ_KEY", "KEYS"};
    static const size_t lengths[] = {4, 8, 4};
    memset(found, 0, 3 * sizeof *found);
    while (p < end) {
        const byte *stop = memchr(p, 2, (size_t)(end - p));
        if (!stop) stop = end;
        const byte *separator = memchr(p, 1, (size_t)(stop - p));
        if (separator && separator + 1 < stop)
            for (int i = 0; i < 3; i++)
                if ((size_t)(separator - p) == lengths[i] && !memcmp(p, names[i], lengths[i]))
                    found[i] = (Bytes){separator + 1, stop};
        p = stop + 1;
    }
}

/* Adds the keys of a value, with `separator` between them; false if one is not plain, or there is no memory for it. */
static int add_keys(Keys *keys, Bytes value, int separator, uint32_t prefix, int64_t offset, int64_t time) {
    while (value.begin < value.end) {
        const byte *stop = memchr(value.begin, separator, (size_t)(value.end - value.begin));
        if (!stop) stop = value.end;
        uint32_t hash = prefix;
        if (!java_hash(&hash, value.begin, stop)) return 0;
        if (keys->count == keys->room) {
            Key *larger = PyMem_Realloc(keys->keys, (2 * keys->room + 64) * sizeof *larger);
            if (!larger) return 0;
            keys->keys = larger, keys->room = 2 * keys->room + 64;
        }
        if (value.begin < stop) keys->keys[keys->count++] = (Key){offset, time, (int32_t)hash, 0};
        value.begin = stop + (stop < value.end);
    }
    return 1;
}

/* Returns the group of a topic and queue id, made if it is new; NULL where it cannot be plain. */
static Group *group_of(Group *groups, int *count, Bytes topic, uint32_t queue_id, int64_t offset, PyObject *apart) {
    size_t length = (size_t)(topic.end - topic.begin);
    for (Group *group = groups; group < groups + *count; group++)
        if (group->queue_id == queue_id && group->topic.end - group->topic.begin == (Py_ssize_t)length &&
            !memcmp(group->topic.begin, topic.begin, length))
            return group;
    Group made = {topic, queue_id, 0, offset, offset};
    if (*count == MOST_GROUPS || !java_hash(&made.prefix, topic.begin, topic.end)) return NULL;
    made.prefix = 31 * made.prefix + '#';
    PyObject *name = PyBytes_FromStringAndSize((const char *)topic.begin, (Py_ssize_t)length);
    int is_apart = name ? PySequence_Contains(apart, name) : -1;
    Py_XDECREF(name);
    if (is_apart) return NULL;
    groups[*count] = made;
    return groups + (*count)++;
}

/* plain_messages(buffer, start, at, count, apart) -> (count, ((topic, queue id, first offset, units), ...), keys) */
static PyObject *plain_messages(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    Py_buffer view;
    int64_t start, at, wanted;
    if (nargs != 5 || !integer(args[1], 0, PLACE_MAX, &start) || !integer(args[2], 0, PLACE_MAX, &at) ||
        !integer(args[3], 1, PLACE_MAX, &wanted) || !view_of(args[0], &view, PyBUF_SIMPLE))
        Py_RETURN_NONE;
    if (wanted > MOST_MESSAGES) wanted = MOST_MESSAGES;
    Group groups[MOST_GROUPS];
    Keys keys = {NULL, 0, 0};
    int group_count = 0, taken = 0; /* messages */
    byte *units = PyMem_Malloc((size_t)wanted * (QUEUE_UNIT + 1));
    byte *group_numbers = units + (units ? wanted * QUEUE_UNIT : 0);
    PyObject *result = NULL, *told = NULL;
    for (; units && taken < wanted && keys.count < MOST_KEYS && at <= view.len - FRONT; taken++) {
        const byte *p = (const byte *)view.buf + at;
        int64_t size = (int32_t)get32(p + 4), body = (int32_t)get32(p + 132);
        int64_t offset = (int64_t)get64(p + 68), physical = start + at + HEADER, time = (int64_t)get64(p + 104);
        /* A record of version 1, its hosts IPv4, of no transaction, with room for the lengths behind its body. */
        if (get32(p) != 1 || size > view.len - at || body < 0 || FRONT + body + 3 > size ||
            (int32_t)get32(p + 48) != size - HEADER || get32(p + 52) != MAGIC_V1 || get32(p + 84) & 0x3C ||
            (int64_t)get64(p + 76) != physical || offset < 0)
            break;
        const byte *tail = p + FRONT + body, *end = p + size;
        Py_ssize_t topic_length = *tail;
        if (topic_length + 3 > end - tail) break;
        Bytes topic = {tail + 1, tail + 1 + topic_length}, found[3];
        Group *group = group_of(groups, &group_count, topic, get32(p + 60), offset, args[4]);
        if (!group || group->next != offset) break;
        size_t keys_before = keys.count;
        uint32_t tag = 0;
        find_properties(topic.end + 2, end, found);
        if (!java_hash(&tag, found[0].begin, found[0].end) ||
            !add_keys(&keys, found[1], 2, group->prefix, physical, time) ||
            !add_keys(&keys, found[2], ' ', group->prefix, physical, time)) {
            keys.count = keys_before;
            break;
        }
        put64(put32(put64(units + QUEUE_UNIT * taken, (uint64_t)physical), (uint32_t)(size - HEADER)),
              (uint64_t)(int64_t)(int32_t)tag);
        group_numbers[taken] = (byte)(group - groups);
        group->next++, at += size;
    }
    if (!taken && !PyErr_Occurred()) result = Py_NewRef(Py_None);
    if (!taken || PyErr_Occurred()) goto done; /* an error only if `apart` holds nothing */
    if (groups[group_count - 1].next == groups[group_count - 1].first) group_count--; /* its message was not plain */
    if (!(told = PyTuple_New(group_count))) goto done;
    byte *places[MOST_GROUPS];
    for (int i = 0; i < group_count; i++) {
        PyObject *own = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(groups[i].next - groups[i].first) * QUEUE_UNIT);
        if (!own) goto done;
        places[i] = (byte *)PyBytes_AsString(own);
        Bytes topic = groups[i].topic;
        PyObject *one = Py_BuildValue("(y#iLN)", topic.begin, (Py_ssize_t)(topic.end - topic.begin),
                                      (int)(int32_t)groups[i].queue_id, (long long)groups[i].first, own);
        if (!one || PyTuple_SetItem(told, i, one) < 0) goto done;
    }
    for (int i = 0; i < taken; i++) {
        byte **place = places + group_numbers[i];
        *place = (byte *)memcpy(*place, units + QUEUE_UNIT * i, QUEUE_UNIT) + QUEUE_UNIT;
    }
    result = Py_BuildValue("(iOy#)", taken, told, (const char *)(keys.keys ? (byte *)keys.keys : units),
                           (Py_ssize_t)(keys.count * sizeof(Key)));
done:
    Py_XDECREF(told);
    PyMem_Free(keys.keys);
    PyMem_Free(units);
    PyBuffer_Release(&view);
    return result;
}

#define METHOD(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, NULL}
static PyMethodDef methods[] = {
    METHOD(check_entries), METHOD(store_entry), METHOD(encode_record), METHOD(plain_messages), {NULL, NULL, 0, NULL}};
static PyModuleDef_Slot slots[] = {{0, NULL}};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "trivet_fast", .m_methods = methods, .m_slots = slots};
PyMODINIT_FUNC PyInit_trivet_fast(void) { return PyModuleDef_Init(&definition); }
