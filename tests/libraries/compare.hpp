// SPDX-License-Identifier: Apache-2.0
// To compare declarations with those of a library's headers: what matters to a caller is how a value is passed, so two
// types agree when the machine cannot tell them apart (any pointer is void *, any enum an int).
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <type_traits>

template <typename T, typename = void>
struct passed {
    using type = T;
};
template <typename T>
struct passed<T, std::enable_if_t<std::is_enum<T>::value && sizeof(T) == sizeof(int)>> {
    using type = int;
};
template <typename T>
struct passed<T, std::enable_if_t<std::is_integral<T>::value && sizeof(T) == 8>> {
    using type = std::conditional_t<std::is_signed<T>::value, int64_t, uint64_t>;
};
template <typename T>
struct passed<T *, void> {
    using type = std::conditional_t<std::is_const<T>::value, const void *, void *>;
};
template <typename R, typename... A>
struct passed<R (*)(A...), void> {
    using type = void *;
};

template <typename F>
struct signature;
template <typename R, typename... A>
struct signature<R (*)(A...)> {
    using type = typename passed<R>::type(typename passed<A>::type...);
};
template <typename F, typename G>
constexpr bool same_signature = std::is_same<typename signature<F>::type, typename signature<G>::type>::value;

static int differences = 0;

static void differs(const char *what, long long ours, long long theirs) {
    std::printf("%s: nvsym has %lld, the header %lld\n", what, ours, theirs);
    ++differences;
}

#define STRING_OF(x) #x
#define EXPANDED(x) STRING_OF(x)

#define VALUE(name, ours) \
    if ((long long)(name) != (long long)(ours)) differs(#name, (long long)(ours), (long long)(name));
#define SIZE(ours, theirs) \
    if (sizeof(ours) != sizeof(theirs)) differs("sizeof " #theirs, sizeof(ours), sizeof(theirs));
#define FIELD(ours, theirs, field)                                                                            \
    if (offsetof(ours, field) != offsetof(theirs, field))                                                     \
        differs("offset of " #theirs "::" #field, offsetof(ours, field), offsetof(theirs, field));            \
    if (sizeof(((ours *)0)->field) != sizeof(((theirs *)0)->field))                                           \
        differs("size of " #theirs "::" #field, sizeof(((ours *)0)->field), sizeof(((theirs *)0)->field));
#define SIGNATURE(ours, theirs)                              \
    if (!same_signature<decltype(ours), decltype(&theirs)>) {\
        std::printf("%s: the arguments differ\n", #theirs);  \
        ++differences;                                       \
    }
#define FUNCTION_TYPE(ours, theirs)                          \
    if (!same_signature<decltype(ours), theirs>) {           \
        std::printf("%s: the arguments differ\n", #theirs);  \
        ++differences;                                       \
    }
#define SYMBOL(name, ours)                                                                       \
    if (std::string(EXPANDED(name)) != ours) {                                                   \
        std::printf("%s: nvsym loads %s, the header %s\n", #name, ours, EXPANDED(name));         \
        ++differences;                                                                           \
    }
